"""Records that are larger than the target takes: nothing after them arrives, and they are mirrored once they fit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kafkafmt as kf
from endpoints.endpoint_process import EndpointProcess
from mirror.folders import NOW, mirror, one_batch_a_request, put_log, records, stopped
from mirror.running import address

pytestmark = [pytest.mark.clients, pytest.mark.slow]


def served(directory: Path) -> EndpointProcess:
    return EndpointProcess(directory, "--allow-produce", log=directory.with_suffix(".log"))


@pytest.mark.parametrize("magic", [1, 2])
def test_record_when_it_is_too_large_within_a_batch_then_it_is_mirrored_after_the_limit_was_raised(
    tmp_path: Path, magic: int
) -> None:
    builder = kf.RecordBatchBuilder(magic, kf.Codec.LZ4)
    for offset in range(10):
        builder.append(NOW + offset, b"key", os.urandom(5000 if offset == 5 else 500))
    put_log(tmp_path / "source" / "t-0", [builder.build()])
    expected = [row[1:] for row in records(tmp_path / "source")]

    target = one_batch_a_request(tmp_path / "target", max_message_bytes=2000)
    with served(target) as running:
        ended = mirror(tmp_path / "source", address(running.address))
    assert ended.status == 1
    assert list(stopped(ended.summary)) == ["t-0"]
    assert "record at offset 5" in ended.summary["stopped"][0]["message"]
    assert [row[1:] for row in records(target)] == expected[:5]

    (target / "topics.ini").write_text((target / "topics.ini").read_text().replace("2000", "20000"))
    with served(target) as running:
        ended = mirror(tmp_path / "source", address(running.address))
    assert (ended.status, ended.summary["possibly_doubled"]) == (0, 0), ended.errors
    assert [row[1:] for row in records(target)] == expected
