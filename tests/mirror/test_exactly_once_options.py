"""`--exactly-once` where it cannot work: one line, before anything is moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.endpoint_process import EndpointProcess
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.options import MirrorOptions
from mirror.folders import batch, mirror, put_log
from mirror.running import address

CLUSTERS = parse_address("kafka://east:9092/t"), parse_address("kafka://west:9092")


def test_exactly_once_when_the_target_is_a_folder_then_is_refused(tmp_path: Path) -> None:
    source = put_log(tmp_path / "source" / "t-0", [batch(0, 1)]).parent
    ended = mirror(source, tmp_path / "target", "--exactly-once")
    assert (ended.status, ended.errors) == (
        2,
        "kafkafmt: --exactly-once needs a cluster as target: into a folder each batch arrives exactly once "
        "without it\n",
    )


def test_exactly_once_when_the_offset_map_is_a_file_then_is_refused() -> None:
    expected = (
        "needs an offset map in a topic of the target .*, found /map: a file is not part of a transaction"
    )
    with pytest.raises(MirrorError, match=expected):
        MirrorOptions(*CLUSTERS, is_exactly_once=True, offset_map="/map")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointProcess]:
    """Takes records, and has no transactions."""
    folder = tmp_path_factory.mktemp("served")
    with EndpointProcess(folder, "--allow-produce", log=folder.with_suffix(".log")) as running:
        yield running


@pytest.mark.clients
@pytest.mark.xdist_group("exactly-once-options")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "--exactly-once needs transactions at the target"),
        (
            ("--commit-interval", 60),
            "--exactly-once needs a --commit-interval below transaction.timeout.ms of the target, 60000 ms, found 60 s",
        ),
        (("--target-config", "acks=1"), "acks is not an option of clients here: the mirror sets it"),
        (
            ("--target-config", "transactional.id=x"),
            "transactional.id is not an option of clients here: the mirror sets it",
        ),
    ],
    ids=["no transactions", "interval", "acks", "transactional id"],
)
def test_exactly_once_when_the_target_cannot_have_it_then_says_so_in_one_line(
    endpoint: EndpointProcess, tmp_path: Path, options: tuple[object, ...], expected: str
) -> None:
    source = put_log(tmp_path / "source" / "t-0", [batch(0, 1)]).parent
    ended = mirror(source, address(endpoint.address), "--exactly-once", *options)
    assert ended.status == 2
    assert ended.errors.splitlines()[-1].startswith(f"kafkafmt: {expected}")
    assert "Traceback" not in ended.errors
