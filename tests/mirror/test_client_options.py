"""What a mirror is told of its clients and cannot be: one line, before anything is moved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.endpoint_process import EndpointProcess
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.options import MirrorOptions
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
    name = option.partition("=")[0]
    assert ended.status == 2
    assert ended.errors == f"kafkafmt: {name} is not an option of clients here: the mirror sets it\n"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            "enable_idempotence=false",
            "enable_idempotence is not an option of clients here: the mirror sets it",
        ),
        ("batch.size=1000", "batch.size is not an option of clients here: the mirror sets it"),
        ("estimator=kip126", "estimator: expected it left out: batches are sent as they are"),
        ("compression_type=gzip", "compression_type: expected it left out: batches are sent as they are"),
        (
            "send.raw.bytes=false",
            "send.raw.bytes=false of the target needs --deep: without it batches are sent",
        ),
        ("send.raw.bytes=no", "client option 'send.raw.bytes': expected true or false, found 'no'"),
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


def test_kip_712_fetch_raw_bytes_of_a_source_is_true(endpoint: EndpointProcess, tmp_path: Path) -> None:
    """KIP-712, "Public Interfaces": the consumer of a mirror that is shallow has `fetch.raw.bytes=true`."""
    source, target = address(endpoint.address, "t"), tmp_path / "target"
    refused = mirror(source, target, "--once", "--source-config", "fetch.raw.bytes=false")
    assert (refused.status, refused.errors) == (
        2,
        "kafkafmt: fetch.raw.bytes of the source: expected true, found false: a mirror fetches batches\n",
    )
    assert mirror(source, target, "--once", "--source-config", "fetch.raw.bytes=true").status == 0


@pytest.mark.parametrize("way", ["--deep", "--adaptive"])
def test_kip_712_send_raw_bytes_that_contradicts_a_way_is_refused(
    endpoint: EndpointProcess, way: str
) -> None:
    clusters = address(endpoint.address, "t"), address(endpoint.address)
    ended = mirror(*clusters, way, "--target-config", "send.raw.bytes=true")
    assert (ended.status, ended.errors) == (
        2,
        f"kafkafmt: send.raw.bytes=true of the target contradicts {way}: it stands for --use-raw-bytes\n",
    )


def test_kip_712_send_raw_bytes_stands_for_use_raw_bytes() -> None:
    addresses = parse_address("kafka://east:9092/t"), parse_address("kafka://west:9092")
    assert MirrorOptions(*addresses).is_adaptive
    for name in ("send.raw.bytes", "send_raw_bytes"):
        assert not MirrorOptions(*addresses, target_config={name: "true"}).is_adaptive


def test_folder_that_gets_options_of_clients_says_that_it_ignores_them(tmp_path: Path) -> None:
    source = put_log(tmp_path / "source" / "u-0", [batch(0, 1)]).parent
    ended = mirror(
        source,
        tmp_path / "target",
        "--source-config",
        "fetch.raw.bytes=true",
        "--target-config",
        "linger.ms=1",
    )
    assert ended.status == 0
    logged = [json.loads(line) for line in ended.errors.splitlines()]
    assert [
        (line["folder"], line["options"]) for line in logged if "their options are ignored" in line["event"]
    ] == [
        (str(source), ["fetch.raw.bytes"]),
        (str(tmp_path / "target"), ["linger.ms"]),
    ]
