"""The tables of docs/architecture.md that name the functions on a way: each is in the file that stands beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TABLE = re.compile(r"^\| step \| file \| function \|\n\|[-|]+\|\n(?P<rows>(?:\|.*\|\n)+)", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_OF_KERNEL = re.compile(
    r"^(?P<indent> *)(?:cp?def|def|class)\b(?P<left>[^(:=\n]*?)(?P<name>\w+)\s*[(:]", re.MULTILINE
)


def rows() -> Iterator[tuple[str, str]]:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for table in _TABLE.finditer(text):
        for row in table["rows"].splitlines():
            _, _, file, functions, _ = row.split("|")
            (path,) = _CODE.findall(file)
            yield from ((path, function) for function in _CODE.findall(functions))


def source(path: str) -> Path:
    if path.startswith("src/"):
        return ROOT / path
    return ROOT / "python" / "kafkafmt" / path


def names_of(path: Path) -> set[str]:
    """Classes and functions of a module, and methods as `Class.method`."""
    if path.suffix == ".pyx":
        return names_of_kernel(path.read_text())
    names = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            names |= {f"{node.name}.{one.name}" for one in ast.iter_child_nodes(node) if hasattr(one, "name")}
    return names


def names_of_kernel(text: str) -> set[str]:
    names, owner = set(), ""
    for found in _OF_KERNEL.finditer(text):
        name = found["name"]
        if found["indent"]:
            names.add(f"{owner}.{name}")
        else:
            owner = name
            names.add(name)
    return names


def test_page_when_read_then_has_the_tables() -> None:
    assert len({path for path, _ in rows()}) > 30


@pytest.mark.parametrize(("path", "function"), sorted(set(rows())))
def test_function_of_a_table_when_looked_up_then_is_in_its_file(path: str, function: str) -> None:
    assert function in names_of(source(path))
