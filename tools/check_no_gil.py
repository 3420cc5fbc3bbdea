"""Import every module of kafkafmt that can be imported here, and fail if one of them has enabled the GIL."""

import importlib
import pkgutil
import sys

import _kafkafmt
import kafkafmt


def main() -> int:
    """Return the exit code. Print the modules that lack a package."""
    missing: dict[str, str] = {}
    for package in (_kafkafmt, kafkafmt):
        for module in pkgutil.walk_packages(
            package.__path__, f"{package.__name__}.", onerror=lambda name: None
        ):
            if module.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                missing[module.name] = str(error)
            if sys._is_gil_enabled():
                print(f"{module.name} has enabled the GIL")
                return 1
    names = sorted(set(missing.values()))
    print(f"The GIL stays disabled. {len(missing)} modules lack a package: {'; '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
