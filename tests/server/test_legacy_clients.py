"""Legacy clients: who is listed, what is kept of them, and how much at most."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey

from kafkafmt.convert.options import ConversionStats
from kafkafmt.server.legacy_clients import (
    MAX_CLIENTS,
    MAX_TEXT,
    MAX_TOPICS,
    ClientList,
    LegacyClient,
    LegacyClients,
    SavedClients,
    TrackedClient,
    clients_file,
    workers_clients,
)
from kafkafmt.server.metrics import Conversions, Metrics

ADDRESS = "10.0.0.7"
FETCH, PRODUCE, METADATA = int(ApiKey.Fetch), int(ApiKey.Produce), int(ApiKey.Metadata)


def fetch_body(*topics: str) -> Any:
    return SimpleNamespace(topics=[SimpleNamespace(topic=topic) for topic in topics])


def connect(clients: LegacyClients, address: str = ADDRESS) -> TrackedClient:
    return TrackedClient(clients, Metrics(), address)


def use(clients: LegacyClients, client_id: str | None, *topics: str, version: int = 2) -> TrackedClient:
    """A connection that sends one old fetch."""
    connection = connect(clients)
    connection.request_taken(FETCH, version, client_id, fetch_body(*topics))
    return connection


def converted(size: int, topic: str = "orders", records: int = 1) -> Conversions:
    found = Conversions()
    found.add(topic, size, ConversionStats(records_converted=records))
    return found


def only(found: ClientList) -> LegacyClient:
    (client,) = found.clients
    return client


def test_client_when_it_uses_dropped_versions_then_is_listed_with_what_it_used() -> None:
    clients = LegacyClients(clock=itertools.count(100.0).__next__)
    connection = connect(clients)
    connection.request_taken(METADATA, 1, "device-7", None)
    assert clients.known() == ClientList([], 0)

    connection.request_taken(FETCH, 3, "device-7", fetch_body("orders"))
    connection.request_passed(METADATA, 0)
    connection.request_taken(FETCH, 2, "device-7", fetch_body("orders", "invoices"))
    connection.converted(FETCH, converted(300))
    connection.converted(PRODUCE, converted(40, "returns"))

    assert clients.known() == ClientList(
        [
            LegacyClient(
                "device-7",
                ADDRESS,
                None,
                None,
                first_seen=100.0,
                last_seen=101.0,
                lowest_versions={"Metadata": 0, "Fetch": 2},
                topics=["orders", "invoices", "returns"],
                requests=2,
                fetched_bytes_converted=300,
                produced_bytes_converted=40,
            )
        ],
        0,
    )


@pytest.mark.parametrize(
    ("api_key", "version"), [(FETCH, 4), (PRODUCE, 3), (METADATA, 0), (int(ApiKey.ListOffsets), 1)]
)
def test_client_when_kafka_4_takes_its_versions_then_is_not_listed(api_key: int, version: int) -> None:
    clients = LegacyClients()
    connect(clients).request_taken(api_key, version, "new", fetch_body("orders"))
    assert clients.known() == ClientList([], 0)


def test_client_when_it_tells_its_software_then_is_listed_with_it() -> None:
    clients = LegacyClients()
    connection = connect(clients)
    told = SimpleNamespace(client_software_name="librdkafka", client_software_version="2.3.0")
    connection.request_taken(int(ApiKey.ApiVersions), 3, "kcat", told)
    connection.request_taken(FETCH, 2, "kcat", fetch_body())
    assert only(clients.known()).key == ("kcat", ADDRESS, "librdkafka", "2.3.0")


def test_clients_when_made_up_without_end_then_the_list_stays_bounded_and_tells_how_many_are_left_out() -> (
    None
):
    clients = LegacyClients()
    steady = use(clients, "steady")
    for number in range(3 * MAX_CLIENTS):
        use(clients, f"made-up-{number}")
        if number % 100 == 0:
            steady.request_taken(FETCH, 2, "steady", fetch_body())
    found = clients.known()
    assert len(found.clients) == MAX_CLIENTS
    assert found.left_out == 2 * MAX_CLIENTS + 1
    assert "steady" in {client.client_id for client in found.clients}


def test_client_when_it_names_topics_without_end_then_few_are_kept_and_names_of_no_topic_are_not() -> None:
    clients = LegacyClients()
    use(clients, "greedy", "a/b", "", "x" * 250, "<b>", *(f"topic-{number}" for number in range(100)))
    client = only(clients.known())
    assert client.topics == [f"topic-{number}" for number in range(MAX_TOPICS)]
    assert client.has_more_topics


def test_client_when_it_tells_long_texts_then_their_beginning_is_kept() -> None:
    clients = LegacyClients()
    use(clients, "c" * 30_000)
    assert only(clients.known()).client_id == "c" * MAX_TEXT


def test_client_when_left_out_then_its_conversions_count_no_more() -> None:
    clients = LegacyClients()
    first = use(clients, "first")
    for number in range(MAX_CLIENTS):
        use(clients, str(number))
    first.converted(FETCH, converted(100))
    assert sum(client.fetched_bytes_converted for client in clients.known().clients) == 0


def test_clients_of_workers_when_merged_then_are_one_list(tmp_path: Path) -> None:
    async def work(number: int, topic: str, version: int) -> None:
        clients = SavedClients(clients_file(tmp_path, number), clock=lambda: 50.0 + number)
        use(clients, "shared", topic, version=version).converted(FETCH, converted(10, topic))
        use(clients, f"own-{number}")
        clients.save()

    asyncio.run(work(0, "orders", 3))
    asyncio.run(work(1, "invoices", 1))

    found = workers_clients(tmp_path)
    assert [client.client_id for client in found.clients] == ["shared", "own-1", "own-0"]
    shared = found.clients[0]
    assert (shared.first_seen, shared.last_seen, shared.requests) == (50.0, 51.0, 2)
    assert (shared.lowest_versions, shared.topics) == ({"Fetch": 1}, ["orders", "invoices"])
    assert shared.fetched_bytes_converted == 20


def test_worker_when_another_takes_its_place_then_its_clients_are_still_listed(tmp_path: Path) -> None:
    async def work(client_id: str) -> None:
        clients = SavedClients(clients_file(tmp_path, 0))
        use(clients, client_id)
        clients.save()

    for client_id in ("before", "after", "before"):
        asyncio.run(work(client_id))
    found = workers_clients(tmp_path)
    assert {client.client_id: client.requests for client in found.clients} == {"before": 2, "after": 1}


def test_clients_of_workers_when_too_many_then_the_list_is_bounded(tmp_path: Path) -> None:
    async def work(number: int) -> None:
        clients = SavedClients(clients_file(tmp_path, number))
        for client in range(MAX_CLIENTS):
            use(clients, f"{number}-{client}")
        clients.save()

    for number in range(2):
        asyncio.run(work(number))
    found = workers_clients(tmp_path)
    assert (len(found.clients), found.left_out) == (MAX_CLIENTS, MAX_CLIENTS)


def test_worker_when_a_client_changes_then_its_file_is_written_soon(tmp_path: Path) -> None:
    async def work() -> ClientList:
        use(SavedClients(clients_file(tmp_path, 0)), "soon")
        while not (found := workers_clients(tmp_path)).clients:
            await asyncio.sleep(0.01)
        return found

    assert only(asyncio.run(asyncio.wait_for(work(), 60))).client_id == "soon"
