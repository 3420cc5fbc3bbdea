"""`kafkafmt.net` where kafka-python is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("absence", ["None", "types.ModuleType('kafka')"], ids=["absent", "a mere folder"])
def test_without_kafka_python_the_import_says_in_one_line_what_to_install(absence: str) -> None:
    program = f"import sys, types; sys.modules['kafka'] = {absence}; import kafkafmt.net"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: kafkafmt.net needs kafka-python: pip install 'kafkafmt[net]'"
    )
