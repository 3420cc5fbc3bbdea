"""Records at the target that the offset map does not tell of: a mirror from another source may have sent the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror.folders import batches, mirror, put_log, stopped
from mirror.reading import end_of
from mirror.running import address
from serve.endpoint_process import EndpointProcess

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("net")]


@pytest.fixture
def west(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "west").mkdir()
    with EndpointProcess(tmp_path / "west", "--allow-produce", log=tmp_path / "west.log") as running:
        yield running.address


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
        assert [end_of(tmp_path / "west", topic) for topic in ("t", "u")] == [100, 50]
        assert mirror(*arguments).status == 1, "nothing of it is remembered"
        assert mirror(*arguments, "--append").summary["records"] == 200
        again = mirror(*arguments)
    assert (again.status, again.summary["records"]) == (0, 0)
    assert end_of(tmp_path / "west", "t") == 300


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
