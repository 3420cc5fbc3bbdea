"""The table of what was fuzzed."""

from __future__ import annotations

from pathlib import Path

from fuzz.results import added, page_of, sources_digest, totals_of

RUNS = "decode aaaa 90.5 1000\nkernel_text cccc 3600 123456789\ndecode aaaa 29.5 234\n"


def test_page_when_runs_are_added_twice_then_it_has_their_sums() -> None:
    first = page_of(added({}, RUNS))
    assert "| decode | aaaa | 2.0 | 1,234 |\n| kernel_text | cccc | 60.0 | 123,456,789 |\n" in first
    assert "| all | | 62.0 | 123,458,023 |" in first
    second = page_of(added(totals_of(first), f"avro aaaa 60 5\n{RUNS}"))
    assert "| avro | aaaa | 1.0 | 5 |\n| decode | aaaa | 4.0 | 2,468 |" in second
    assert "| all | | 125.0 | 246,916,051 |" in second


def test_row_when_the_sources_have_changed_then_begins_anew() -> None:
    page = page_of(added(totals_of(page_of(added({}, RUNS))), "decode bbbb 60 7"))
    assert "| decode | bbbb | 1.0 | 7 |" in page
    assert "| kernel_text | cccc | 60.0 | 123,456,789 |" in page


def test_digest_when_a_source_changes_then_it_differs_for_the_targets_that_have_it(tmp_path: Path) -> None:
    kernel, module = tmp_path / "src" / "kernel.pxd", tmp_path / "python" / "module.py"
    digests = []
    for path, text in ((kernel, "a"), (kernel, "b"), (module, "a"), (module, "b")):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        digests.append([sources_digest(target, tmp_path) for target in ("kernel_text", "decode")])
    native, others = zip(*digests, strict=True)
    assert len(set(others)) == 4
    assert len(set(native)) == 2
    kernel.rename(kernel.with_name("other.pxd"))
    assert sources_digest("kernel_text", tmp_path) not in native
