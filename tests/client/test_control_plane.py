"""Requests of kafka-python's part of a client. Served by kafkafmt."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka.protocol.metadata import FindCoordinatorRequest

from client.sending import ANSWER_SECONDS
from endpoints.served import Served
from kafkafmt.client.control_plane import ControlPlane
from kafkafmt.client.producer_config import DEFAULT_CONFIG, producer_config
from log.samples import batches, put_segment

pytestmark = pytest.mark.clients


def test_request_when_it_cannot_be_encoded_and_its_connection_opens_then_ends_with_the_error(
    tmp_path: Path,
) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 1))
    with Served(tmp_path) as served:
        config = {"bootstrap_servers": "{}:{}".format(*served.address)}
        control = ControlPlane(producer_config(config, DEFAULT_CONFIG))
        control.start(ANSWER_SECONDS * 1000)
        try:
            (broker,) = control.cluster.brokers()
            assert not control.client.connected(broker.node_id)
            request = FindCoordinatorRequest(key="\ud800", coordinator_keys=["\ud800"])
            future = control.send(request, broker.node_id)
            with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
                control.wait(future, ANSWER_SECONDS * 1000)
        finally:
            control.close()
