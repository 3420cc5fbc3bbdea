"""The table of what was fuzzed."""

from __future__ import annotations

from pathlib import Path

from fuzz.results import KERNELS, ROOT, added, digest_of, page_of, sources_of, totals_of

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


def test_digest_when_a_source_changes_or_moves_then_it_differs(tmp_path: Path) -> None:
    kernel, module = tmp_path / "kernel.pxd", tmp_path / "module.py"
    digests = []
    for path, text in ((kernel, "a"), (module, "a"), (kernel, "b"), (module, "b")):
        path.write_text(text)
        digests.append(digest_of(tmp_path.iterdir(), tmp_path))
    kernel.rename(tmp_path / "other.pxd")
    assert len({*digests, digest_of(tmp_path.iterdir(), tmp_path)}) == 5


def test_sources_when_of_a_target_then_they_are_what_its_inputs_run() -> None:
    sources = {path.relative_to(ROOT).as_posix() for path in sources_of("codec")}
    assert {"src/_kafkafmt/crc/xxh32.pyx", "python/kafkafmt/codecs/lz4_.py"} <= sources
    assert not {"src/_kafkafmt/records/decode.pyx", "python/kafkafmt/log/segment.py"} & sources
    native = {path.relative_to(KERNELS).as_posix() for path in sources_of("kernel_text")}
    assert {"payloads/json_numbers.pxd", "wire/varint.pxd"} <= native
    assert "wire/fetch_versions.pxd" not in native


def test_sources_when_a_kernel_is_imported_then_they_are_those_of_all_that_it_cimports() -> None:
    of_response, of_decode = (
        {path.relative_to(KERNELS).as_posix() for path in sources_of(target) if path.is_relative_to(KERNELS)}
        for target in ("response", "decode")
    )
    assert {"client/fetch.pyx", "client/messages.pxd", "wire/fields.pxd"} <= of_response
    assert {"records/decode.pyx", "crc/checksums.pyx", "crc/crc32.c"} <= of_decode
    assert "streams/lru.pyx" not in of_response | of_decode
