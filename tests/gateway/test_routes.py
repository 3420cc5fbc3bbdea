"""Each API has a route, and the page names it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

from kafkafmt.gateway.routes import ROUTES, Broker
from kafkafmt.gateway.splitting import SPLITS

if TYPE_CHECKING:
    from broker.broker import Broker as RealBroker

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
# The value of the table in `ROUTES` is the first column.
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def test_page_when_it_lists_requests_then_they_are_those_of_the_routes() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- brokers by request -->")
    table, _, _ = rest.partition("<!-- end of the table -->")

    found = {
        brokers: sorted(names.split(", ")) for brokers, names in ROW.findall(table) if brokers != "brokers"
    }

    assert found == {
        broker.value: sorted(ApiKey(key).name for key, route in ROUTES.items() if route.broker is broker)
        for broker in Broker
    }


def test_splits_when_an_api_has_one_then_its_route_is_of_several_brokers() -> None:
    several = {Broker.LEADER, Broker.GROUP, Broker.TRANSACTION, Broker.NAMED, Broker.EVERY}
    assert {ROUTES[key].broker for key in SPLITS} == several


@pytest.mark.broker
def test_real_broker_when_it_offers_an_api_then_there_is_a_route(broker: RealBroker) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    offered = {one.api_key for one in broker.request(request, 3).api_keys}

    assert offered <= set(ROUTES)
