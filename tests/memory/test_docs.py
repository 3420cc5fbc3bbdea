"""What docs/memory.md and the README say of memory: blocks print what stands below them, and options are all named."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from kafkafmt.cli.memory import memory
from kafkafmt.cli.replay import replay
from kafkafmt.cli.table import table
from kafkafmt.memory import ThreadPlan
from mirror.page import BLOCK, ROOT, Session, without_durations

PAGE = (ROOT / "docs" / "memory.md").read_text()
# What a command says that it held, which is held against the system's own figures elsewhere.
PEAK = re.compile(r"(?<=memory: at most )\d+\.\d [KM]iB")


def without_peaks(text: str) -> str:
    return PEAK.sub("0", text)


def section_of_readme() -> str:
    section = re.search(
        r"^## Memory\n.*?(?=^## )", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert section is not None
    return section[0]


def test_page_and_readme_when_run_then_print_what_they_say(tmp_path: Path) -> None:
    session = Session(tmp_path, {})
    for block in BLOCK.finditer(PAGE + section_of_readme()):
        printed = session.run(block["language"], block["code"])
        assert without_peaks(printed) == without_peaks(without_durations(block["printed"] or "")), block[
            "code"
        ]


def test_page_when_it_says_what_is_printed_then_has_blocks_for_all_of_it() -> None:
    blocks = list(BLOCK.finditer(PAGE))
    assert len(blocks) == PAGE.count("```sh") + PAGE.count("```python") >= 10
    assert sum(block["printed"] is not None for block in blocks) == PAGE.count("```text")


@pytest.mark.parametrize("command", [memory, replay, table])
def test_page_when_it_names_options_then_names_all_there_are(command: click.Command) -> None:
    names = [
        {*parameter.opts, *parameter.secondary_opts}
        for parameter in command.params
        if isinstance(parameter, click.Option)
    ]
    assert [options for options in names if options.isdisjoint(re.findall(r"--[\w-]+", PAGE))] == []


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
