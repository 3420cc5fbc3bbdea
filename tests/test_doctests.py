"""The examples in the docstrings of the package, run as written."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import kafkafmt

MODULES = ["kafkafmt", *(module.name for module in pkgutil.walk_packages(kafkafmt.__path__, "kafkafmt."))]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_module_print_what_they_say(module: str) -> None:
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in {"kafkafmt", "_kafkafmt"}:
            raise
        pytest.skip(f"needs {missing.name}, which is not installed")
    assert doctest.testmod(imported).failed == 0
