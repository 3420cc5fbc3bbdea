"""The layers: each imports from itself and from those under it, and the kernels import nothing of `kafkafmt`.

The table below is the rule. A module that it does not place fails, so that a new one is placed on purpose.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "kafkafmt"
KERNELS = ROOT / "src" / "_kafkafmt"

# From the bottom up. A name places its module and, where it is a package, all modules in it.
# Within a row modules import each other as they need, but never in a circle.
LAYERS = {
    "kernels": ["_kafkafmt"],
    "foundations": ["kafkafmt._util", "kafkafmt.errors", "kafkafmt.types"],
    "records": [
        "kafkafmt.codecs",
        "kafkafmt.columns",
        # `Records.down_convert` converts at once: the engine knows formats, and no policy.
        "kafkafmt.convert.engine",
        "kafkafmt.convert.options",
        "kafkafmt.records",
        "kafkafmt.schemas",
    ],
    "flows": ["kafkafmt.build", "kafkafmt.convert", "kafkafmt.memory"],
    "logs": ["kafkafmt.log", "kafkafmt.storage"],
    "engines": [
        "kafkafmt.client",
        "kafkafmt.decode",
        "kafkafmt.export",
        "kafkafmt.jobs",
        "kafkafmt.scanning",
        "kafkafmt.server",
        "kafkafmt.streams",
    ],
    "the public names": [
        "kafkafmt",
        "kafkafmt.accumulator",
        "kafkafmt.memory.cache",
        "kafkafmt.memory.store",
        "kafkafmt.net",
    ],
    "applications": [
        "kafkafmt.__main__",
        "kafkafmt.backup",
        "kafkafmt.cli",
        "kafkafmt.gateway",
        "kafkafmt.mirror",
        "kafkafmt.restore",
        "kafkafmt.serve",
        "kafkafmt.spark",
    ],
}
# Which other applications an application may import.
APPLICATIONS = {
    "kafkafmt.__main__": {"kafkafmt.cli"},
    "kafkafmt.backup": {"kafkafmt.mirror"},
    "kafkafmt.cli": {
        "kafkafmt.backup",
        "kafkafmt.gateway",
        "kafkafmt.mirror",
        "kafkafmt.restore",
        "kafkafmt.serve",
        "kafkafmt.spark",
    },
    "kafkafmt.gateway": set(),
    "kafkafmt.mirror": set(),
    "kafkafmt.restore": {"kafkafmt.mirror"},
    "kafkafmt.serve": set(),
    "kafkafmt.spark": set(),
}
HEIGHT = {name: height for height, names in enumerate(LAYERS.values()) for name in names}

MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
KERNEL_SOURCES = sorted(path for path in KERNELS.rglob("*") if path.suffix in {".py", ".pyi", ".pyx", ".pxd"})


def height(module: str) -> int:
    """The layer of a module: that of the longest name in the table that holds it."""
    if module == "kafkafmt":
        return HEIGHT[module]
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if name != "kafkafmt" and name in HEIGHT:
            return HEIGHT[name]
    raise LookupError(f"{module} is in no layer: place it in the table of {Path(__file__).name}")


def imports(module: str) -> Iterator[tuple[int, str]]:
    """Line and name of every module of the project that this one imports, lazily or for types included."""
    tree = ast.parse(MODULES[module].read_bytes())
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if is_ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join([*parents, source]).rstrip(".")
            if is_ours(source):
                for alias in node.names:
                    name = f"{source}.{alias.name}"
                    yield node.lineno, name if name in MODULES else source


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in {"kafkafmt", "_kafkafmt"}


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_from_its_own_layer_or_below(module: str) -> None:
    upward = [f"line {line}: {name}" for line, name in imports(module) if height(name) > height(module)]
    assert not upward, f"{module} imports upward, {'; '.join(upward)}"


@pytest.mark.parametrize("source", KERNEL_SOURCES, ids=lambda path: str(path.relative_to(KERNELS)))
def test_kernel_imports_nothing_of_kafkafmt(source: Path) -> None:
    pattern = re.compile(r"^\s*(?:from|c?import)\s+.*(?<![\w.])kafkafmt\b", re.MULTILINE)
    found = [line.strip() for line in pattern.findall(source.read_text())]
    assert not found


def application(module: str) -> str | None:
    """The application that a module is of; None for all others."""
    name = ".".join(module.split(".")[:2])
    return name if name in APPLICATIONS else None


@pytest.mark.parametrize("module", [module for module in MODULES if application(module)])
def test_application_imports_only_the_applications_that_the_table_allows(module: str) -> None:
    own = application(module)
    found = {(line, name) for line, name in imports(module) if application(name) not in {None, own}}
    wrong = [
        f"line {line}: {name}" for line, name in sorted(found) if application(name) not in APPLICATIONS[own]
    ]
    assert not wrong, f"{module} imports another application, {'; '.join(wrong)}"


def test_import_of_the_package_when_nothing_else_is_imported_then_no_application_is() -> None:
    names = [*APPLICATIONS, "pyarrow", "pyspark", "kafka"]
    program = f"import kafkafmt, sys; print(*(name for name in {names} if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_modules_import_each_other_in_no_circle() -> None:
    """Type-only and local imports included. A package and what is in it count as one where they import each other."""
    graph = {
        module: {name for _, name in imports(module) if may_close_a_circle(module, name)}
        for module in MODULES
    }
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def may_close_a_circle(module: str, name: str) -> bool:
    return (
        name in MODULES
        and not f"{module}.".startswith(f"{name}.")
        and not f"{name}.".startswith(f"{module}.")
    )


def test_names_when_imported_from_where_they_were_documented_then_are_the_same_objects() -> None:
    moved = {
        "kafkafmt.accumulator": ("RecordAccumulator", "kafkafmt.client.accumulator"),
        "kafkafmt.memory": ("PartitionGroup", "kafkafmt.streams"),
        "kafkafmt.memory.cache": ("ThreadCache", "kafkafmt.streams.cache"),
        "kafkafmt.memory.store": ("RocksDBStore", "kafkafmt.streams.store"),
    }
    for old, (name, new) in moved.items():
        assert getattr(import_module(old), name) is getattr(import_module(new), name)
