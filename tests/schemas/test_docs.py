"""The section of docs/forensics.md about decoders: its blocks print what stands below them."""

from __future__ import annotations

from pathlib import Path

from docs.pages import assert_has_blocks_for_all_it_prints, assert_prints_what_it_says, section


def test_section_about_decoders_when_run_then_prints_what_it_says(tmp_path: Path) -> None:
    text = section("docs/forensics.md", "## Decoders of Kafka's record types")
    assert_has_blocks_for_all_it_prints(text)
    assert_prints_what_it_says(text, tmp_path)
