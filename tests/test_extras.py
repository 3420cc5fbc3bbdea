"""kafkafmt where the packages of its extras are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = (
    "import sys; sys.modules.update(dict.fromkeys(['pyarrow', 'kafka', 'structlog', 'prometheus_client']))\n"
)

PYTHON = """
import inspect, json
from importlib import import_module
from unittest.mock import create_autospec

import kafkafmt
from kafkafmt.log import LogDirectory

builder = kafkafmt.RecordBatchBuilder()
builder.append(0, None, b"value")
records = kafkafmt.MemoryRecords(builder.build())
found = {}
for name, call in {
    "to_arrow": records.to_arrow,
    "arrow_batches": records.arrow_batches,
    "a store": lambda: LogDirectory("s3://bucket/logs"),
    "decode": lambda: import_module("kafkafmt.decode"),
    "from decode": lambda: exec("from kafkafmt import decode"),
    "export": lambda: import_module("kafkafmt.export"),
    "backup": lambda: import_module("kafkafmt.backup"),
    "restore": lambda: import_module("kafkafmt.restore"),
}.items():
    try:
        call()
    except ModuleNotFoundError as error:
        found[name] = [str(error), error.name]
    else:
        found[name] = None
found["hasattr"] = hasattr(kafkafmt, "decode")
found["names"] = [name for name, _ in inspect.getmembers(create_autospec(kafkafmt)) if name == "MemoryRecords"]
found["hidden"] = sorted({"Any", "TYPE_CHECKING", "import_module", "sys"} & {*dir(kafkafmt)})
print(json.dumps(found))
"""

COMMAND = """
from kafkafmt.cli import main
main()
"""


def run(program: str, *words: object) -> subprocess.CompletedProcess[str]:
    done = [sys.executable, "-c", WITHOUT + program, *map(str, words)]
    return subprocess.run(done, capture_output=True, text=True, check=False)


def test_package_when_it_is_not_installed_then_the_error_names_the_extra_and_others_work() -> None:
    result = run(PYTHON)
    assert result.returncode == 0, result.stderr
    decode = ["kafkafmt.decode needs pyarrow: pip install 'kafkafmt[decode]'", "pyarrow"]
    arrow = ["an Arrow table or batch needs pyarrow: pip install 'kafkafmt[arrow]'", "pyarrow"]
    assert json.loads(result.stdout) == {
        "to_arrow": arrow,
        "arrow_batches": arrow,
        "a store": ["s3://bucket needs pyarrow: pip install 'kafkafmt[arrow]'", "pyarrow"],
        "decode": decode,
        "from decode": decode,
        "export": decode,
        "backup": ["kafkafmt.backup needs structlog: pip install 'kafkafmt[backup]'", "structlog"],
        "restore": ["kafkafmt.restore needs kafka-python: pip install 'kafkafmt[backup]'", "kafka"],
        "hasattr": False,
        "names": ["MemoryRecords"],
        "hidden": [],
    }


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["mirror", "kafka://127.0.0.1:1/orders"], "mirror"),
        (["backup", "kafka://127.0.0.1:1"], "backup"),
        (["gateway", "127.0.0.1:1"], "serve"),
    ],
)
def test_command_when_a_package_is_missing_then_one_line_names_its_extra(
    words: list[str], extra: str, tmp_path: Path
) -> None:
    result = run(COMMAND, *words, *([] if words[0] == "gateway" else [tmp_path / "target"]))
    assert result.returncode == 2
    assert result.stderr == f"kafkafmt: {words[0]} needs kafka-python: pip install 'kafkafmt[{extra}]'\n"
