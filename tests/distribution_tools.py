"""The programs of tools/ that make and check wheels, as modules, programs in place of others, and pyproject.toml."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]


def tool(name: str) -> ModuleType:
    """Return `tools/NAME.py` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write_program(path: Path, *lines: str) -> Path:
    """Write a program for the shell, in place of another one, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


check_distributions = tool("check_distributions")
wheel_targets = tool("wheel_targets")  # before the program that imports it
wheels = tool("wheels")
PROJECT: dict[str, Any] = wheels.settings()
