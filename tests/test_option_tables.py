"""The tables of options in docs/: what `tools/option_tables.py` writes out of the options themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")


def test_pages_when_they_list_options_then_have_all_of_them_as_help_and_parsers_do() -> None:
    tool = Path(__file__).parents[1] / "tools" / "option_tables.py"
    done = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
