"""The layers: each imports from itself and from those under it, and the kernels import nothing of `kafkafmt`.

The table below is the rule. A module that it does not place fails, so that a new one is placed on purpose.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "kafkafmt"
KERNELS = ROOT / "src" / "_kafkafmt"

# From the bottom up. A name places its module and, where it is a package, all modules in it.
LAYERS = {
    "kernels": ["_kafkafmt"],
    "foundations": [
        "kafkafmt._util",
        "kafkafmt.buffers",
        "kafkafmt.closing",
        "kafkafmt.errors",
        "kafkafmt.ini",
        "kafkafmt.sizes",
        "kafkafmt.types",
    ],
    "codecs": ["kafkafmt.codecs"],
    "records": [
        "kafkafmt.arrow_arrays",
        "kafkafmt.batch",
        "kafkafmt.builder",
        "kafkafmt.channel",
        "kafkafmt.column_rows",
        "kafkafmt.columns",
        "kafkafmt.conversion",
        "kafkafmt.converter",
        "kafkafmt.decoding",
        "kafkafmt.log",
        "kafkafmt.records",
        "kafkafmt.remote",
    ],
    "flows": [
        "kafkafmt.accumulator",
        "kafkafmt.converted_chunks",
        "kafkafmt.down_conversion",
        "kafkafmt.estimator",
        "kafkafmt.fetch_response",
        "kafkafmt.forwarding",
        "kafkafmt.memory",
        "kafkafmt.split",
    ],
    "the public names": ["kafkafmt"],
    "jobs": ["kafkafmt.jobs"],
    "applications": ["kafkafmt.cli", "kafkafmt.mirror", "kafkafmt.net", "kafkafmt.serve", "kafkafmt.spark"],
}
HEIGHT = {name: height for height, names in enumerate(LAYERS.values()) for name in names}

MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
KERNEL_SOURCES = sorted(path for path in KERNELS.iterdir() if path.suffix in {".py", ".pyi", ".pyx", ".pxd"})


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


@pytest.mark.parametrize("source", KERNEL_SOURCES, ids=lambda path: path.name)
def test_kernel_imports_nothing_of_kafkafmt(source: Path) -> None:
    pattern = re.compile(r"^\s*(?:from|c?import)\s+.*(?<![\w.])kafkafmt\b", re.MULTILINE)
    found = [line.strip() for line in pattern.findall(source.read_text())]
    assert not found
