"""What a mirror is told of its clients and cannot be: one line, before anything is moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.endpoint_process import EndpointProcess
from mirror.folders import batch, mirror, put_log
from mirror.running import address

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("client-options")]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointProcess]:
    """Takes records, and has one."""
    folder = tmp_path_factory.mktemp("served")
    put_log(folder / "t-0", [batch(0, 1)])
    with EndpointProcess(folder, "--allow-produce", log=folder.with_suffix(".log")) as running:
        yield running


@pytest.mark.parametrize("option", ["check_crcs=false", "isolation.level=read_committed", "group.id=other"])
def test_option_of_the_source_that_the_mirror_relies_on_is_refused(
    endpoint: EndpointProcess, tmp_path: Path, option: str
) -> None:
    ended = mirror(address(endpoint.address, "t"), tmp_path / "target", "--once", "--source-config", option)
    name = option.partition("=")[0].replace(".", "_")
    assert ended.status == 2
    assert ended.errors == f"kafkafmt: {name} is not an option of clients here: the mirror sets it\n"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            "enable_idempotence=false",
            "enable_idempotence is not an option of clients here: the mirror sets it",
        ),
        ("batch.size=1000", "batch_size is not an option of clients here: the mirror sets it"),
        ("compression_type=gzip", "compression_type: expected None: a RawProducer sends batches as they are"),
        ("max_block_ms=-1", "max_block_ms: expected 0 or more, found -1"),
    ],
)
def test_option_that_no_producer_of_batches_takes_is_told_in_its_words(
    endpoint: EndpointProcess, tmp_path: Path, option: str, expected: str
) -> None:
    source = put_log(tmp_path / "source" / "u-0", [batch(0, 1)]).parent
    ended = mirror(source, address(endpoint.address), "--target-config", option)
    assert ended.status == 2
    assert ended.errors == f"kafkafmt: {expected}\n"
