"""What docs/memory.md says of memory: blocks print what stands below them, and tables are whole."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from kafkafmt.memory import ThreadPlan
from mirror.page import BLOCK, ROOT, Session, without_durations

PAGE = (ROOT / "docs" / "memory.md").read_text()
# What a command says that it held, which is held against the system's own figures elsewhere.
PEAK = re.compile(r"(?<=memory: at most )\d+\.\d [KM]iB")


def without_peaks(text: str) -> str:
    return PEAK.sub("0", text)


@pytest.mark.full
def test_page_when_run_then_prints_what_it_says(tmp_path: Path) -> None:
    session = Session(tmp_path, {})
    for block in BLOCK.finditer(PAGE):
        printed = session.run(block["language"], block["code"])
        assert without_peaks(printed) == without_peaks(without_durations(block["printed"] or "")), block[
            "code"
        ]


def test_page_when_it_says_what_is_printed_then_has_blocks_for_all_of_it() -> None:
    blocks = list(BLOCK.finditer(PAGE))
    assert len(blocks) == PAGE.count("```sh") + PAGE.count("```python") >= 10
    assert sum(block["printed"] is not None for block in blocks) == PAGE.count("```text")


def test_page_when_it_has_the_symbols_of_the_document_then_a_thread_plan_has_their_names() -> None:
    rows = re.findall(r"^\|[^|]*\| ((?:`\w+_bytes`(?:, )?)+) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    plan_names = {one.name for one in fields(ThreadPlan)} | {
        "buffer_bytes",
        "state_bytes",
        "cache_bytes",
        "rest_bytes",
    }
    assert named - plan_names == {"total_bytes", "usable_bytes", "reserved_bytes"}
