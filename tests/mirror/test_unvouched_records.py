"""Records at the target that the offset map does not tell of: a mirror from another source may have sent the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.endpoint_process import EndpointProcess
from kafkafmt.net import Producer
from mirror.folders import batches, mirror, put_log, stopped
from mirror.reading import end_of
from mirror.running import address

pytestmark = [pytest.mark.clients, pytest.mark.slow]


@pytest.fixture
def west(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "west").mkdir()
    with EndpointProcess(tmp_path / "west", "--allow-produce", log=tmp_path / "west.log") as running:
        yield running.address


@pytest.mark.full
def test_records_when_another_source_brought_them_then_are_refused_unless_appended(
    west: str, tmp_path: Path
) -> None:
    """A backup of a cluster is restored into another; then the cluster itself is mirrored there."""
    backup = put_log(tmp_path / "backup" / "t-0", batches(0, 100)).parent
    put_log(tmp_path / "east" / "u-0", batches(0, 50))
    east = put_log(tmp_path / "east" / "t-0", batches(0, 200)).parent
    assert mirror(backup, address(west)).status == 0
    with EndpointProcess(east, log=tmp_path / "east.log") as source:
        arguments = (address(source.address), address(west), "--once")
        ended = mirror(*arguments)
        assert (ended.status, stopped(ended.summary)) == (1, {"t-0": 0})
        message = ended.summary["stopped"][0]["message"]
        assert "t-0 has offsets 0 to 99 at the target" in message
        assert "expected an empty partition, or --append" in message
        assert ended.errors.count("t-0 offsets 0 to 99") == ended.errors.count("--append") == 1
        assert [end_of(tmp_path / "west", topic) for topic in ("t", "u")] == [100, 50]
        assert mirror(*arguments).status == 1, "nothing of it is remembered"
        assert mirror(*arguments, "--append").summary["records"] == 200
        again = mirror(*arguments)
    assert (again.status, again.summary["records"]) == (0, 0)
    assert end_of(tmp_path / "west", "t") == 300


def test_records_when_the_map_knows_other_partitions_alone_then_theirs_is_refused_in_one_line_with_its_like(
    west: str, tmp_path: Path
) -> None:
    """Known, unknown to the map, known of another source, and empty at the target."""
    east, other = tmp_path / "east", tmp_path / "other"
    put_log(other / "t-1", batches(0, 20))
    put_log(other / "t-2", batches(0, 30))
    assert mirror(other, address(west)).status == 0
    put_log(east / "t-0", batches(0, 50))
    assert mirror(east, address(west)).status == 0
    for number in (1, 2):
        put_log(east / f"t-{number}", batches(0, 50))
    put_log(east / "u-0", batches(0, 50))
    put_log(east / "t-0", batches(50, 100))
    ended = mirror(east, address(west))
    assert (ended.status, stopped(ended.summary)) == (1, {"t-1": 0, "t-2": 0})
    assert ended.summary["records"] == 100
    (line,) = [line for line in ended.errors.splitlines() if '"level": "error"' in line]
    assert json.loads(line)["partitions"] == "t-1 offsets 0 to 19, t-2 offsets 0 to 29"
    assert "--append" in line


@pytest.mark.full
@pytest.mark.parametrize("kept_in", ["a topic", "a file"])
def test_records_when_they_are_behind_the_end_of_the_map_then_are_refused_unless_appended(
    west: str, tmp_path: Path, kept_in: str
) -> None:
    """As where an application writes to the topic after a failover."""
    options = ("--offset-map", tmp_path / "offsets.db") if kept_in == "a file" else ()
    east = put_log(tmp_path / "east" / "t-0", batches(0, 100)).parent
    assert mirror(east, address(west), *options).status == 0
    with Producer(bootstrap_servers=west) as producer:
        producer.send("t", b"theirs", partition=0)
    put_log(east / "t-0", batches(100, 150))
    for _ in range(2):
        ended = mirror(east, address(west), *options)
        assert (ended.status, stopped(ended.summary)) == (1, {"t-0": 0})
        message = ended.summary["stopped"][0]["message"]
        assert "t-0 has offsets 100 to 100 at the target" in message
        assert "offset map of this source ends at 100" in message
    appended = mirror(east, address(west), *options, "--append")
    assert (appended.status, appended.summary["records"]) == (0, 50)
    assert "behind" not in appended.errors
    assert "t-0 offsets 100 to 100" in appended.errors
    assert end_of(tmp_path / "west", "t") == 151
    again = mirror(east, address(west), *options)
    assert (again.status, again.summary["records"]) == (0, 0)


@pytest.mark.full
def test_records_when_they_are_repartitioned_then_the_whole_topic_must_be_empty(
    west: str, tmp_path: Path
) -> None:
    for number in range(3):
        put_log(tmp_path / "east" / f"t-{number}", batches(0, 100))
    put_log(tmp_path / "other" / "t-2", batches(0, 10))
    arguments = (tmp_path / "east", address(west), "--deep", "--repartition")
    assert mirror(*arguments).status == 0
    assert mirror(*arguments).status == 0
    other = mirror(tmp_path / "other", address(west), "--deep", "--repartition")
    assert (other.status, stopped(other.summary)) == (1, {"t-2": 0})


def test_append_when_the_target_is_a_folder_then_is_one_line(tmp_path: Path) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 10))
    ended = mirror(tmp_path / "source", tmp_path / "target", "--append")
    assert ended.status == 2
    assert (
        ended.errors == "kafkafmt: --append needs a cluster as target: a folder keeps the source's offsets\n"
    )
