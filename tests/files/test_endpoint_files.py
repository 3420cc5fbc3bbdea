"""What the endpoint opens: a FIFO in the place of one of its files does not stop it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.logs import run, write_log
from kafkafmt._util.files import NotRegularFileError
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.offset_stores import FileOffsetMapStore
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.groups.offsets import OffsetsFile, OffsetsFileError
from kafkafmt.server.options import TlsOptions
from kafkafmt.server.security.tls import tls_context


@pytest.mark.parametrize(
    "name", ["meta.properties", "orders-0/partition.metadata", "orders-0/leader-epoch-checkpoint"]
)
def test_catalog_when_a_file_is_a_fifo_then_does_without_it(tmp_path: Path, name: str) -> None:
    write_log(tmp_path / "orders-0")
    os.mkfifo(tmp_path / name)
    catalog = Catalog(tmp_path)
    assert catalog.cluster_id
    topic = catalog.topic("orders")
    assert topic is not None
    assert topic.id
    assert topic.partitions[0].leader_epoch == -1


def test_users_and_topics_when_their_file_is_a_fifo_then_the_endpoint_says_so(tmp_path: Path) -> None:
    write_log(tmp_path / "logs" / "orders-0")
    os.mkfifo(tmp_path / "fifo")
    for option in ("--sasl-users", "--topics-file"):
        result = run("serve", tmp_path / "logs", option, tmp_path / "fifo", "--listen", "127.0.0.1:0")
        assert result.exit_code == 2
        assert "expected a regular file, found a FIFO" in result.stderr


def test_certificate_when_it_is_a_fifo_then_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(NotRegularFileError):
        tls_context(TlsOptions(tmp_path / "fifo", tmp_path / "key"))


def test_offsets_when_their_file_is_a_fifo_then_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OffsetsFileError, match="expected a regular file, found a FIFO"):
        OffsetsFile(tmp_path / "fifo", 1024)
    with pytest.raises(MirrorError, match="expected a regular file, found a FIFO"):
        FileOffsetMapStore(tmp_path / "fifo", "source")
