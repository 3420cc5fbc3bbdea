"""Fuzz one target: `python -m fuzz.run TARGET [options of libFuzzer] CORPUS...`; `make fuzz` calls it for each.

Needs atheris, with its library preloaded, and kernels built with KAFKAFMT_FUZZ. The Python of the library is
instrumented as well, so that the fuzzer sees the branches of all layers.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable

import atheris

# Of these the bytes have no structure that a mutator knows.
PLAIN_TARGETS = (
    "codec",
    "client_request",
    "coordinators",
    "broker_file",
    "record_lines",
    "protobuf",
    "avro",
    "json_payloads",
)

with atheris.instrument_imports(include=["kafkafmt"]):
    import kafkafmt.log
    import kafkafmt.schemas
    import kafkafmt.serve.endpoint  # noqa: F401

from fuzz import seeds  # noqa: E402
from fuzz.message_mutation import MUTATORS  # noqa: E402
from fuzz.mutation import Mutator  # noqa: E402
from fuzz.native_checks import NATIVE_TARGETS  # noqa: E402


def main() -> None:
    name = sys.argv.pop(1)
    target = importlib.import_module(f"fuzz.{name}")
    # libFuzzer starts itself with this command to merge corpora.
    sys.argv[0] = f"{sys.executable} -m fuzz.run {name}"
    if name in NATIVE_TARGETS:
        atheris.Setup(sys.argv, target.check)
    else:
        atheris.Setup(sys.argv, target.check, custom_mutator=_mutator(name, target.OPTIONS_LENGTH))
    atheris.Fuzz()


def _mutator(name: str, options_length: int) -> Callable[[bytes, int, int], bytes]:
    own = [data[1:] for data in seeds.inputs(name)] if name == "metadata" else seeds.record_sets()
    mutator = Mutator(own, lambda data: atheris.Mutate(data, len(data) + 64))

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        options, body = data[:options_length].ljust(options_length, b"\0"), data[options_length:]
        if name in PLAIN_TARGETS or rng.random() < 0.1:
            return atheris.Mutate(data, max_size)
        if name in MUTATORS:
            changed = MUTATORS[name](data, rng, lambda part: atheris.Mutate(part, len(part) + 64))
            return atheris.Mutate(data, max_size) if changed is None else changed[:max_size]
        if rng.random() < 0.2:
            options = atheris.Mutate(options, options_length).ljust(options_length, b"\0")
        if name in ("log", "repair"):
            return mutate_log(options, body, rng)[:max_size]
        return (options + mutator.record_set(body, seed))[:max_size]

    def mutate_log(options: bytes, body: bytes, rng: random.Random) -> bytes:
        """The log more often than its indexes."""
        from fuzz.log import SIZES, Input

        given = Input(options + body)
        if rng.random() < 0.6:
            given.log = mutator.record_set(given.log, rng.getrandbits(32))
        else:
            chosen = rng.randrange(len(given.indexes))
            given.indexes[chosen] = atheris.Mutate(given.indexes[chosen], 200)
        sizes = map(len, given.indexes)
        head = SIZES.pack(given.cut, given.offset, given.time, given.run_bytes, *sizes)
        return b"".join((head, *given.indexes, given.log))

    return mutate


if __name__ == "__main__":
    main()
