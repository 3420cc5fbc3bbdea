"""The table of what was fuzzed."""

from __future__ import annotations

from pathlib import Path

from fuzz.results import added, page_of, sources_digest, totals_of

SOURCES, OTHERS = "a" * 64, "b" * 64
RUNS = "".join(
    f"{SOURCES} {one}\n" for one in ("decode 90.5 1000", "kernel_text 3600 123456789", "decode 29.5 234")
)


def test_page_when_runs_are_added_twice_then_it_has_their_sums() -> None:
    first = page_of(added({}, RUNS, SOURCES), SOURCES)
    assert (
        "| decode | 2.0 | 1,234 |\n| kernel_text | 60.0 | 123,456,789 |\n| all | 62.0 | 123,458,023 |"
        in first
    )
    second = page_of(added(totals_of(first, SOURCES), f"{SOURCES} avro 60 5\n{RUNS}", SOURCES), SOURCES)
    assert "| decode | 4.0 | 2,468 |" in second
    assert "| avro | 1.0 | 5 |" in second
    assert "| all | 125.0 | 246,916,051 |" in second


def test_page_when_it_is_of_other_sources_then_nothing_is_added_to_it() -> None:
    assert totals_of(page_of(added({}, RUNS, SOURCES), SOURCES), OTHERS) == {}
    assert added({}, RUNS, OTHERS) == {}


def test_digest_when_a_source_changes_then_it_differs(tmp_path: Path) -> None:
    source = tmp_path / "src" / "kernel.pyx"
    source.parent.mkdir()
    digests = set()
    for text in ("a", "b"):
        source.write_text(text)
        digests.add(sources_digest(tmp_path))
    source.rename(source.with_name("other.pyx"))
    digests.add(sources_digest(tmp_path))
    assert len(digests) == 3
