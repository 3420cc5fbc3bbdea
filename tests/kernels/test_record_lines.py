"""Records as JSON lines: equal to json.dumps of rows, and to the messages that the decoders of the schemas make."""

from __future__ import annotations

import json
import struct
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
from _kafkafmt.json.record_lines import RecordLines, TransactionState
from kafkafmt.records.decoding import locate
from kafkafmt.records.runs import whole_batches
from records.samples import EVERY_KIND
from schemas.record_objects import (
    COORDINATORS,
    TIME,
    TOPICS,
    Pair,
    assert_objects,
    batch_of,
    expected_lines,
    lines_of,
    record_pairs,
    varint,
)
from schemas.vectors import vectors


def damaged(data: bytes | None, random: Random) -> bytes | None:
    if data is None or random.random() < 0.05:
        return None
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 2))):
        if changed:
            changed[random.randrange(len(changed))] = random.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
    return bytes(changed[: random.choice((len(changed), random.randrange(len(changed) + 1)))])


def test_lines_of_any_kind_of_batch_when_the_topic_is_ordinary_then_are_those_of_json_dumps():
    assert lines_of(EVERY_KIND) == expected_lines(EVERY_KIND)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.text(max_size=40).map(str.encode) | st.binary(max_size=40),
            st.none() | st.text(max_size=40).map(str.encode) | st.binary(max_size=40),
            st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=2),
        ),
        max_size=9,
    )
)
def test_lines_when_any_bytes_then_are_those_of_json_dumps(rows):
    builder = kf.RecordBatchBuilder(producer_id=9, producer_epoch=1, base_sequence=2**31 - 3)
    for timestamp, (key, value, headers) in enumerate(rows):
        builder.append(timestamp, key, value, headers)
    if rows:
        assert lines_of(builder.build()) == expected_lines(builder.build())


def test_lines_when_every_code_point_of_unicode_then_are_those_of_json_dumps():
    text = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000, 97))))
    data = batch_of([(text[at : at + 500].encode(), None) for at in range(0, len(text), 500)])
    assert lines_of(data) == expected_lines(data)


def test_lines_when_integers_have_any_number_of_digits_then_are_those_of_json_dumps():
    near = [power + step for power in (10**digits for digits in range(19)) for step in (-1, 0, 1)]
    data = b""
    for offset, timestamp in enumerate((*near, 2**63 - 1)):
        builder = kf.RecordBatchBuilder(base_offset=offset)
        builder.append(timestamp, None, None)
        data += builder.build()
    assert lines_of(data) == expected_lines(data)


def test_lines_when_one_is_larger_than_the_buffer_then_is_whole():
    data = batch_of([(b"k", b"\x01" * 300_000), (b"k", b"\xff" * 300_000), (b"k", b"plain" * 300_000)])
    assert lines_of(data) == expected_lines(data)


def test_lines_when_offsets_and_a_limit_are_given_then_of_the_selected_records():
    data = batch_of([(b"%d" % number, None) for number in range(20)])
    found = lines_of(data, first_offset=5, end_offset=15, most=100)
    assert [json.loads(line)["offset"] for line in found] == list(range(5, 15))
    writer = RecordLines(b"{")
    located = locate(whole_batches(data), verify=True, limit=1 << 20)
    lines, count, number = writer.write(located, 3, most=4)
    assert (len(lines.tobytes().splitlines()), count, number) == (4, 4, 7)


def test_objects_when_kafka_wrote_the_messages_then_are_the_json_that_kafka_read():
    values = {kind.value: (topic, kind) for topic, types in TOPICS.items() for kind in types.values()}
    compared = 0
    for vector in vectors():
        if vector.message not in values:
            continue
        topic, kind = values[vector.message]
        if topic in COORDINATORS:
            pair = struct.pack(">h", kind.api_key), struct.pack(">h", vector.version) + vector.data
        else:
            pair = None, varint(1) + varint(kind.api_key) + varint(vector.version) + vector.data
        (line,) = lines_of(batch_of([pair]), topic)
        assert json.loads(line)["value"]["data"] == vector.json, vector
        compared += 1
    assert compared > 150


@pytest.mark.parametrize("topic", TOPICS)
def test_objects_when_any_type_and_version_then_are_those_of_the_decoder(topic):
    random = Random(topic)
    assert_objects(topic, [pair for _ in range(10) for pair in record_pairs(topic, random)])


@pytest.mark.parametrize("topic", TOPICS)
def test_objects_when_bytes_are_damaged_then_have_the_bytes_and_an_error(topic):
    random = Random(topic)
    pairs = [pair for _ in range(10) for pair in record_pairs(topic, random)]
    assert_objects(topic, [(damaged(key, random), damaged(value, random)) for key, value in pairs])


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__cluster_metadata", "__share_group_state"])
def test_objects_when_any_byte_is_cut_or_changed_then_are_those_of_the_decoder(topic):
    random = Random(topic)
    key, value = max(record_pairs(topic, random), key=lambda pair: 100 < len(pair[1] or b"") < 400)
    assert value is not None
    pairs: list[Pair] = [(key, value[:size]) for size in range(len(value))]
    for at in range(len(value)):
        pairs += [(key, value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :]) for bit in (1, 0x10, 0x80)]
    if key is not None:
        pairs += [(key[:size], value) for size in range(len(key))]
    assert_objects(topic, pairs)


def test_objects_when_records_are_control_records_then_are_decoded():
    pairs: list[Pair] = [
        (struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 7)),
        (struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7)),
        (struct.pack(">hh", 0, 1), b"\0"),
        (struct.pack(">hh", 1, 1), struct.pack(">hi", 5, 7)),
        (struct.pack(">hh", 0, 2), struct.pack(">hib", 0, 3, 1) + bytes(4)),
        (struct.pack(">hh", 0, 3), struct.pack(">hqb", 0, TIME, 0)),
        (struct.pack(">hh", 0, 99), b"\0\0"),
        (b"\0\0\0", b"\0\0"),
        (b"", None),
    ]
    assert_objects("__cluster_metadata", pairs, is_control=True)


def test_objects_when_a_tag_is_repeated_then_the_last_one_counts():
    epoch, other = b"\0\4" + struct.pack(">i", 5), b"\0\4" + struct.pack(">i", 6)
    start = varint(1) + varint(17) + varint(0)  # BrokerRegistrationChangeRecord
    for tags in ([], [epoch], [epoch, other]):
        body = struct.pack(">iq", 1, 2) + varint(len(tags)) + b"".join(tags)
        assert_objects("__cluster_metadata", [(None, start + body)])


def test_lines_when_states_of_transactions_are_given_then_each_line_ends_with_that_of_its_batch():
    batches = [kf.RecordBatchBuilder(base_offset=number) for number in range(4)]
    for builder in batches:
        builder.append(TIME, b"k", None)
    run = whole_batches(b"".join(builder.build() for builder in batches))
    states = np.array(
        [TransactionState[name] for name in ("OPEN", "ABORTED", "COMMITTED", "NO_TRANSACTION")], np.uint8
    )
    writer = RecordLines(b'{"path": "log"')
    lines, _, _ = writer.write(locate(run, 1, verify=True, limit=1 << 20), transactions=states)
    rows = [json.loads(line) for line in lines.tobytes().splitlines()]
    assert [row["transaction"] for row in rows] == ["aborted", "committed", None]
    assert list(rows[0])[-1] == "transaction"
    with pytest.raises(ValueError, match="expected 4 states, found 3"):
        writer.write(locate(run, verify=True, limit=1 << 20), transactions=states[1:])
