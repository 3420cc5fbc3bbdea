"""Fuzz one target: `python -m fuzz.run TARGET [options of libFuzzer] CORPUS...`; `make fuzz` calls it for each.

Needs atheris, with its library preloaded, and kernels built with KAFKAFMT_FUZZ. The Python of the library is
instrumented as well, so that the fuzzer sees the branches of all layers. Native targets run without Python and its
instrumentation.
"""

from __future__ import annotations

import importlib
import sys

import atheris

from fuzz.native_checks import NATIVE_TARGETS

INSTRUMENTED = ("kafkafmt.log", "kafkafmt.schemas", "kafkafmt.serve.endpoint")  # and what they import


def main() -> None:
    name = sys.argv.pop(1)
    # libFuzzer starts itself with this command to merge corpora.
    sys.argv[0] = f"{sys.executable} -m fuzz.run {name}"
    if name in NATIVE_TARGETS:
        atheris.Setup(sys.argv, importlib.import_module(f"fuzz.{name}").check)
    else:
        with atheris.instrument_imports(include=["kafkafmt"]):
            for module in INSTRUMENTED:
                importlib.import_module(module)
        from fuzz.target_mutators import mutator_of

        target = importlib.import_module(f"fuzz.{name}")
        atheris.Setup(sys.argv, target.check, custom_mutator=mutator_of(name, target.OPTIONS_LENGTH))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
