"""`check_produce` and `BatchForwarder` with real brokers: refused is what the one names, taken what the other makes."""

from __future__ import annotations

import time

import pytest

import kafkafmt as kf
import reference as ref
from broker.broker import Broker
from broker.produce import produce
from data.real_logs import LOGS, NAMES, expected
from kafkafmt import BatchForwarder, RefusalReason, check_produce
from kafkafmt.log import LogDirectory
from mirror.reading import Reader
from records.samples import empty_batch, end_marker
from reference import Row

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("broker")]

NOW = time.time_ns() // 1_000_000 - 60_000
ROWS = [Row(number, NOW + number, b"key-%d" % number, b"value") for number in range(5)]
SHIFTED = [row._replace(offset=row.offset + 7) for row in ROWS]
TIMELESS = [row._replace(timestamp=-1) for row in ROWS]
LIMIT = 2_000
SPLIT_LIMIT = 35_000  # the largest record of the logs fits, some batches do not
OK, MESSAGE_TOO_LARGE = 0, 10

TAKEN = {
    **{f"codec {codec}": ref.batch_of(ROWS, codec=codec) for codec in range(5)},
    "one record": ref.batch_of(ROWS[:1]),
    "no timestamps": ref.batch_of(TIMELESS),
    "idempotent": ref.batch_of(ROWS, producer=(4100, 0, 0)),
    "idempotent, later": ref.batch_of(ROWS, producer=(4101, 3, 2**31 - 2)),
    "a sequence of no producer": ref.batch_of(ROWS, producer=(-1, -1, 7)),
    "an epoch of no producer": ref.batch_of(ROWS, producer=(-1, 3, -1)),
    "delete horizon": ref.batch_of(ROWS, attributes=ref.DELETE_HORIZON),
    "attributes of no meaning": ref.batch_of(ROWS, attributes=0x4080),
    "leader epoch": ref.batch_of(ROWS, leader_epoch=5),
    "wrong maximum of timestamps": ref.batch_of(ROWS, max_timestamp=1),
}
CRC, CONTROL, EMPTY, GAPS, MAGIC, PRODUCER_STATE, CODEC, TIMESTAMP_TYPE = (
    RefusalReason.CRC,
    RefusalReason.CONTROL,
    RefusalReason.EMPTY,
    RefusalReason.GAPS,
    RefusalReason.MAGIC,
    RefusalReason.PRODUCER_STATE,
    RefusalReason.CODEC,
    RefusalReason.TIMESTAMP_TYPE,
)
REFUSED = {
    "v0": (MAGIC, ref.messages(0, ROWS[:1])),
    "v1": (MAGIC, ref.messages(1, ROWS[:1])),
    "v1, compressed": (MAGIC, ref.wrapper(1, ref.GZIP, ROWS)),
    "end of a transaction": (CONTROL, end_marker(0, commit=True)),
    "control": (CONTROL, ref.batch_of(ROWS[:1], attributes=ref.CONTROL)),
    "empty": (EMPTY, empty_batch(0)),
    "empty, of one offset": (EMPTY, empty_batch(0, 0)),
    "damaged": (CRC, ref.batch_of(ROWS, crc=1)),
    "gap": (GAPS, ref.batch_of(ROWS[::2])),
    "gap at the end": (GAPS, ref.batch_of(ROWS, last_offset_delta=9)),
    "gap at the start": (GAPS, ref.batch_of(ROWS[1:], base_offset=0)),
    "gap, compressed": (GAPS, ref.batch_of(ROWS[::2], codec=ref.ZSTD)),
    "producer without sequence": (PRODUCER_STATE, ref.batch_of(ROWS, producer=(4102, 0, -1))),
    "transactional": (
        PRODUCER_STATE,
        ref.batch_of(ROWS, attributes=ref.TRANSACTIONAL, producer=(4103, 0, 0)),
    ),
    "transactional of no producer": (PRODUCER_STATE, ref.batch_of(ROWS, attributes=ref.TRANSACTIONAL)),
    **{
        f"codec {codec}": (CODEC, ref.batch(ref.records(ROWS, 0, NOW), len(ROWS), attributes=codec))
        for codec in (5, 6, 7)
    },
    "log append time without timestamps": (
        TIMESTAMP_TYPE,
        ref.batch_of(TIMELESS, attributes=ref.TIMESTAMP_TYPE),
    ),
}


@pytest.fixture(scope="module")
def topic(any_broker: Broker) -> str:
    any_broker.create_topic("checked")
    return "checked"


def only_batch(data: bytes) -> kf.RecordBatch:
    (batch,) = kf.MemoryRecords(data).batches()
    return batch


@pytest.mark.parametrize("name", TAKEN)
def test_check_when_it_names_nothing_then_a_broker_takes_the_batch(
    any_broker: Broker, topic: str, name: str
) -> None:
    assert check_produce(only_batch(TAKEN[name])) == []
    assert produce(any_broker, topic, TAKEN[name]) == OK


@pytest.mark.parametrize("name", REFUSED)
def test_check_when_a_broker_refuses_the_batch_then_names_the_reason(
    any_broker: Broker, topic: str, name: str
) -> None:
    reason, data = REFUSED[name]
    assert reason in [refusal.reason for refusal in check_produce(only_batch(data))]
    assert produce(any_broker, topic, data) != OK


def test_check_when_the_append_time_is_set_then_names_it_where_a_broker_refuses_it(
    any_broker: Broker,
) -> None:
    """A topic of create time takes such a batch, but drops the append time: its records get other timestamps."""
    stamped = ref.batch_of(ROWS, attributes=ref.TIMESTAMP_TYPE, max_timestamp=NOW + 99)
    any_broker.create_topic("checked-append-time", config={"message.timestamp.type": "LogAppendTime"})
    assert [refusal.reason for refusal in check_produce(only_batch(stamped))] == [TIMESTAMP_TYPE]
    assert produce(any_broker, "checked-append-time", stamped) != OK


@pytest.mark.parametrize("excess", [0, 1])
def test_check_when_the_batch_is_as_large_as_allowed_or_larger_then_says_what_a_broker_says(
    any_broker: Broker, excess: int
) -> None:
    topic = f"checked-size-{excess}"
    any_broker.create_topic(topic, config={"max.message.bytes": LIMIT})
    data = ref.batch_of([Row(0, NOW, None, bytes(LIMIT))])
    data = ref.batch_of([Row(0, NOW, None, bytes(2 * LIMIT - len(data) + excess))])
    assert len(data) == LIMIT + excess
    reasons = [r.reason for r in check_produce(only_batch(data), max_message_bytes=LIMIT)]
    assert reasons == [RefusalReason.SIZE] * excess
    assert produce(any_broker, topic, data) == (MESSAGE_TOO_LARGE if excess else OK)


def test_check_when_the_base_offset_is_not_zero_then_leaves_it_to_who_sends_the_batch(
    any_broker: Broker, topic: str
) -> None:
    """A broker refuses it; it lies outside the CRC, and whoever sends writes 0 there."""
    data = ref.batch_of(SHIFTED)
    assert check_produce(only_batch(data)) == []
    assert produce(any_broker, topic, data) != OK
    assert produce(any_broker, topic, bytes(8) + data[8:]) == OK


def test_check_when_a_producer_has_no_epoch_then_names_it_where_a_broker_refuses_it(
    any_broker: Broker,
) -> None:
    """Brokers take such a batch as it is, but fail where the topic's codec makes them write it anew."""
    data = ref.batch_of(ROWS, producer=(4104, -1, 0))
    any_broker.create_topic("checked-recompressing", config={"compression.type": "zstd"})
    assert [refusal.reason for refusal in check_produce(only_batch(data))] == [PRODUCER_STATE]
    assert produce(any_broker, "checked-recompressing", data) != OK


@pytest.mark.parametrize("limit", [None, SPLIT_LIMIT], ids=["any-size", "small"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "single-0"])  # of many batches alike
def test_forward_when_a_broker_wrote_the_log_then_another_takes_every_batch(
    any_broker: Broker, name: str, limit: int | None
) -> None:
    """And an ordinary consumer reads there what it read in the source, at offsets without gaps."""
    topic = f"forwarded-{name}-{limit}"
    config = {"message.timestamp.after.max.ms": 2**63 - 1} | (
        {} if limit is None else {"max.message.bytes": limit}
    )
    any_broker.create_topic(topic, config=config)
    source = LogDirectory(LOGS / name)
    forwarder = BatchForwarder(max_message_bytes=limit)
    for run in source.partition(source.partitions()[0]).runs():
        for forwarded in forwarder.forward(run):
            for number in range(len(forwarded.run)):
                data = bytes(kf.RecordBatch(forwarded.run, number))
                assert produce(any_broker, topic, bytes(8) + data[8:]) == OK
    wanted = [(r.timestamp, r.key, r.value, r.headers) for r in expected(name)]
    with Reader(any_broker.bootstrap) as reader:
        read = reader.by_offset(topic)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in read.values()] == wanted
    assert list(read) == list(range(len(wanted)))
