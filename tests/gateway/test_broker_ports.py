"""Ports that stand for one broker each."""

from __future__ import annotations

import pytest

from kafkafmt.gateway.broker_ports import BrokerPorts


def test_ports_when_node_ids_are_consecutive_then_each_has_its_own() -> None:
    ports, nodes = BrokerPorts.parse("19192-19195"), [101, 102, 103, 104]

    found = [ports.port(node, nodes) for node in nodes]

    assert sorted(filter(None, found)) == list(ports.all)
    assert [ports.node(port, nodes) for port in filter(None, found)] == nodes


def test_port_when_two_nodes_would_share_it_then_the_lower_has_it() -> None:
    ports = BrokerPorts.parse("19192-19194")

    assert ports.port(1, [1, 4]) == 19193
    assert ports.port(4, [1, 4]) is None
    assert ports.node(19193, [1, 4]) == 1
    assert ports.node(19192, [1, 4]) is None


@pytest.mark.parametrize("text", ["", "9192", "9192-", "-9192", "9193-9192", "0-5", "65535-65536", "a-b"])
def test_ports_when_the_text_is_no_range_then_it_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="FIRST-LAST"):
        BrokerPorts.parse(text)
