"""The section about repair: its blocks print what it says."""

from __future__ import annotations

from pathlib import Path

from docs.pages import assert_prints_what_it_says, section


def test_section_about_repair_when_run_then_prints_what_it_says(tmp_path: Path) -> None:
    assert_prints_what_it_says(section("docs/forensics.md", "## Repair a directory"), tmp_path)
