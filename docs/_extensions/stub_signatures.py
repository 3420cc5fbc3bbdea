"""Gives the compiled functions and classes of the reference the signatures of their stubs, which have types."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_KERNELS = "_kafkafmt."


@cache
def _definitions(module: str) -> dict[str, ast.AST]:
    """What a stub defines, by its name within the module."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    origin = Path(spec.origin)
    stub = origin.with_name(f"{module.rpartition('.')[2]}.pyi")
    if not stub.is_file():
        return {}
    found: dict[str, ast.AST] = {}
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef):
                found[f"{node.name}.{member.name}"] = member
    return found


def _signature(function: ast.AST | None) -> tuple[str, str | None] | None:
    if not isinstance(function, ast.FunctionDef):
        return None
    arguments = ast.unparse(function.args)
    for own in ("self", "cls"):
        arguments = arguments.removeprefix(own).removeprefix(", ")
    return f"({arguments})", None if function.returns is None else ast.unparse(function.returns)


def process_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    module = getattr(obj, "__module__", None) or getattr(getattr(obj, "__objclass__", None), "__module__", "")
    if signature is None or not str(module).startswith(_KERNELS):  # autodoc takes none where it found none
        return None
    stub = _definitions(module)
    path = getattr(obj, "__qualname__", name.rpartition(".")[2])
    if what in ("class", "exception"):
        found = _signature(stub.get(f"{path}.__init__") or stub.get(f"{path}.__new__"))
        return (found[0], None) if found else None
    return _signature(stub.get(path))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-signature", process_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
