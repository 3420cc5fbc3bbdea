"""The pages docs/producer.md and docs/clients.md, and how their blocks are run.

Each block of Python prints what stands below it.

The port that they name is a broker's, and the folder `/backup` a temporary one.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from broker.broker import Broker

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "producer.md").read_text()
CLIENTS_PAGE = (ROOT / "docs" / "clients.md").read_text()
ON_SPARK = re.compile(r"^## From Spark\n.*?(?=^## )", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL)
ADDRESS = "localhost:9092"
BACKUP = '"/backup"'


def assert_prints_what_it_says(text: str, names: dict[str, Any], broker: Broker, backup: Path) -> None:
    """Run the blocks of a text one after the other, each with the names of those before it."""
    for block in BLOCK.finditer(text):
        code = block["code"].replace(ADDRESS, broker.bootstrap).replace(BACKUP, repr(str(backup)))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "page.md", "exec"), names)
        assert printed.getvalue() == (block["printed"] or ""), block["code"]
