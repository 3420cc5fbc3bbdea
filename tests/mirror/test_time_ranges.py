"""`--topics`, `--from` and `--to` of a mirror: it has the records within, as they are at the source, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from endpoints.endpoint_process import EndpointProcess
from mirror.folders import NOW, batches, log_bytes, mirror, put_log, records
from mirror.running import address

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Partitions of 300 records in batches of ten, of every codec, a millisecond apart."""
    for name in ("t-0", "t-1", "u-0", "v-0"):
        put_log(tmp_path / "source" / name, batches())
    return tmp_path / "source"


def test_folder_when_topics_are_names_and_globs_then_has_those_alone(source: Path, tmp_path: Path) -> None:
    assert mirror(source, tmp_path / "target", "--topics", "t,[vw]").status == 0
    assert {path.name for path in (tmp_path / "target").glob("*-*") if path.is_dir()} == {"t-0", "t-1", "v-0"}


def test_topics_when_one_matches_nothing_then_the_mirror_does_not_start(source: Path, tmp_path: Path) -> None:
    outcome = mirror(source, tmp_path / "target", "--topics", "t,none-*")
    assert outcome.status == 2
    assert "no topic matches 'none-*'" in outcome.errors


@pytest.mark.parametrize("number", range(5))
def test_folder_when_bounds_are_within_batches_of_any_codec_then_has_the_records_between(
    source: Path, tmp_path: Path, number: int
) -> None:
    first, end = number * 10 + 3, number * 10 + 107
    times = ("--from", NOW + first, "--to", NOW + end)
    outcome = mirror(source, tmp_path / "target", "--topics", "t", *times)
    assert (outcome.status, outcome.summary["records"]) == (0, 2 * (end - first))
    for partition in (("t", 0), ("t", 1)):
        assert records(tmp_path / "target", partition) == records(source, partition)[first:end]


def test_batches_when_they_are_within_the_bounds_then_are_the_bytes_of_the_source(
    source: Path, tmp_path: Path
) -> None:
    assert mirror(source, tmp_path / "target", "--from", NOW + 20, "--to", NOW + 260).status == 0
    assert log_bytes(tmp_path / "target" / "t-0") == b"".join(batches()[2:26])


def test_mirror_when_it_has_ended_at_a_time_then_a_later_one_continues_there(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    assert mirror(source, target, "--from", NOW + 15, "--to", NOW + 47).status == 0
    assert mirror(source, target, "--from", NOW + 15, "--to", NOW + 48).status == 0
    assert records(target) == records(source)[15:48]
    later = mirror(source, target, "--from", NOW + 290)
    assert later.status == 0, later.errors
    assert records(target) == records(source)[15:]


def test_mirror_when_no_record_is_that_late_then_begins_at_the_end(source: Path, tmp_path: Path) -> None:
    outcome = mirror(source, tmp_path / "target", "--from", "-1d")
    assert (outcome.status, outcome.summary["records"]) == (0, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--to", "2026-01-31", "--follow"), "--to ends each partition"),
        (("--from", "soon"), "'soon' is not a time"),
        (("--from", "2026-01-31", "--to", "2026-01-31"), "no record is in between"),
    ],
)
def test_wrong_times_are_one_line(source: Path, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    outcome = mirror(source, tmp_path / "target", *options)
    assert (outcome.status, outcome.errors.count("\n")) == (2, 1)
    assert words in outcome.errors


@pytest.mark.clients
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_cluster_when_bounds_are_within_batches_then_has_the_records_between_and_a_later_one_continues(
    source: Path, tmp_path: Path, isolation: str
) -> None:
    target = tmp_path / "target"
    with EndpointProcess(source, log=tmp_path / "serve.log") as server:
        cluster = address(server.address)
        options = ("--topics", "t", "--isolation", isolation, "--from", NOW + 13)
        outcome = mirror(cluster, target, *options, "--to", NOW + 107)
        assert (outcome.status, outcome.summary["records"]) == (0, 2 * (107 - 13)), outcome.errors
        for partition in (("t", 0), ("t", 1)):
            assert records(target, partition) == records(source, partition)[13:107]
        assert mirror(cluster, target, *options, "--to", NOW + 108).status == 0
        assert mirror(cluster, target, *options, "--once").status == 0
    for partition in (("t", 0), ("t", 1)):
        assert records(target, partition) == records(source, partition)[13:]
