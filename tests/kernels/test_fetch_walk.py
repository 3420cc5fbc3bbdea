"""Walks over Fetch responses that arrive in pieces: every byte is records or fields, as in the whole response."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from _kafkafmt.client.fetch_walk import FetchResponseWalk, ResponseWalkError
from kernels.wire_messages import encoded

VERSIONS = range(FetchResponse.max_version + 1)
_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData


def response(version: int, records: list[list[bytes | None]], aborted: int = 0) -> bytes:
    message = FetchResponse(
        responses=[
            _Topic(
                topic=f"topic-{number}",
                topic_id=uuid.UUID(int=number + 1),
                partitions=[
                    _Partition(
                        partition_index=index,
                        high_watermark=9,
                        aborted_transactions=[
                            _Partition.AbortedTransaction(producer_id=7, first_offset=one)
                            for one in range(aborted)
                        ],
                        records=one,
                    )
                    for index, one in enumerate(partitions)
                ],
            )
            for number, partitions in enumerate(records)
        ]
    )
    return bytes(encoded(message, version, 5))


def walked(data: bytes, version: int, piece: int) -> tuple[list[bytes], bytes]:
    """Return the records and the end that a walk finds if the response arrives in pieces."""
    walk, found, waiting, position = FetchResponseWalk(version), [], b"", 0
    while not walk.is_at_end:
        used, size = walk.step(waiting)
        waiting = waiting[used:]
        if size:
            while len(waiting) < size:
                waiting += data[position : position + piece]
                position += piece
            found.append(waiting[:size])
            waiting = waiting[size:]
        elif not walk.is_at_end:
            assert position < len(data)
            waiting += data[position : position + piece]
            position += piece
    return found, waiting + data[position:]


@pytest.mark.parametrize("version", VERSIONS)
@given(
    records=st.lists(st.lists(st.none() | st.binary(max_size=40), max_size=3), max_size=3),
    aborted=st.integers(0, 3),
    piece=st.integers(1, 50),
)
def test_walk_when_response_arrives_in_pieces_then_finds_all_records(
    version: int, records: Any, aborted: int, piece: int
) -> None:
    data = response(version, records, aborted)

    found, end = walked(data, version, piece)

    assert found == [one for partitions in records for one in partitions if one]
    assert end == (b"\0" if version >= 12 else b"")


@pytest.mark.parametrize("version", VERSIONS[12:])  # in older versions each field has an end
def test_walk_when_a_field_never_ends_then_raises(version: int) -> None:
    walk = FetchResponseWalk(version)
    endless = response(version, [[b"x"]])[:20] + b"\xff" * 70_000

    def walk_on() -> None:
        unwalked = endless
        for _ in range(3):
            unwalked = unwalked[walk.step(unwalked)[0] :]

    with pytest.raises(ResponseWalkError):
        walk_on()


def test_walk_when_version_is_unknown_then_raises() -> None:
    with pytest.raises(ValueError, match="expected 0 to 18, found 19"):
        FetchResponseWalk(19)
