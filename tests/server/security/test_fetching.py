"""Fetches over TLS, whose bytes pass through the process, of more than the buffers of sockets hold."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from endpoints.fetched import partitions, read
from endpoints.raw_client import RawClient
from endpoints.requests import MIB, Wanted, fetch
from endpoints.served import Served
from kafkafmt.server.options import TlsOptions
from log.samples import batches, put_segment
from server.security.certificates import make_certificates

RECORDS = 2000
OLD, NEW = 3, 12


@pytest.mark.parametrize("version", [OLD, NEW])
def test_fetch_that_is_larger_than_all_buffers_arrives_whole(tmp_path: Path, version: int) -> None:
    certificates = make_certificates(tmp_path)
    logs = tmp_path / "logs"
    put_segment(logs / "t-0", 0, batches(0, RECORDS, size=4000))
    put_segment(logs / "u-0", 0, batches(0, 3))
    tls = TlsOptions(certificates.server, certificates.server_key)
    context = ssl.create_default_context(cafile=certificates.server_ca)

    with Served(logs, tls=tls) as served, RawClient(served.address) as client:
        client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
        found = partitions(client.ask(fetch(Wanted("t", 0, 0, 16 * MIB), Wanted("u")), version))

    assert read(found["t", 0]) == list(range(RECORDS))
    assert read(found["u", 0]) == [0, 1, 2]
