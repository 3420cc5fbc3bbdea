"""What docs/records.md says: its blocks print what stands below them."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from data.real_logs import LOGS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "records.md").read_text()
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL)


def test_page_when_run_then_prints_what_it_says():
    names: dict[str, Any] = {}
    for block in BLOCK.finditer(PAGE):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"].replace('"/backup', f'"{LOGS}'), "records.md", "exec"), names)
        assert printed.getvalue() == (block["printed"] or ""), block["code"]


def test_page_when_it_says_what_is_printed_then_has_blocks_for_all_of_it():
    blocks = list(BLOCK.finditer(PAGE))
    assert len(blocks) == PAGE.count("```python") >= 7
    assert sum(block["printed"] is not None for block in blocks) == PAGE.count("```text")
