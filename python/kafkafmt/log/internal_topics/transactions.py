"""Read the state of transactions from `__transaction_state`, and the open transactions of the logs beside it.

A transaction is *hanging* if it is open in a log and nothing will end it: the coordinator has no transaction of this
producer that includes the partition, or the transaction is open for longer than its timeout. Committed readers then
wait at its first record, and compaction stops there (KIP-664, `kafka-transactions.sh find-hanging`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkafmt.columns.fields import Field, arrow_table
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.internal_topics.latest import (
    DamageHandler,
    partition_of_log,
    raise_damage,
    read_latest,
)
from kafkafmt.log.internal_topics.offsets import UnknownRecord
from kafkafmt.log.internal_topics.open_transactions import OpenTransaction, open_transactions
from kafkafmt.log.internal_topics.sources import LogSources, Sources
from kafkafmt.schemas import RawMessage, decode_transaction_record
from kafkafmt.types import TopicPartition, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from kafkafmt.log.partition_log import PartitionLog
    from kafkafmt.types import LastRecord

TRANSACTION_STATE = "__transaction_state"

# Kafka's TransactionState, by the number in a record.
_STATES = {
    0: "Empty",
    1: "Ongoing",
    2: "PrepareCommit",
    3: "PrepareAbort",
    4: "CompleteCommit",
    5: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}
_ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")

TRANSACTION_FIELDS = (
    Field("transactional_id", "string"),
    Field("state", "string"),
    Field("producer_id", "int64"),
    Field("producer_epoch", "int32"),
    Field("topic", "string"),
    Field("partition", "int32"),
    Field("first_offset", "int64"),
    Field("start_timestamp_ms", "int64"),
    Field("open_ms", "int64"),
    Field("timeout_ms", "int32"),
    Field("is_hanging", "boolean"),
    Field("hanging_reason", "string"),
    Field("last_update_timestamp_ms", "int64"),
    Field("coordinator_partition", "int32"),
    Field("previous_producer_id", "int64"),
    Field("next_producer_id", "int64"),
    Field("next_producer_epoch", "int32"),
    Field("client_transaction_version", "int32"),
)


@dataclass(frozen=True)
class TransactionState:
    """The state of a transactional id, as its coordinator wrote it.

    state: as Kafka's tools print it: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead
        or PrepareEpochFence; the number of a state that this release does not know.
    partitions: those of the transaction, sorted; empty if there is no transaction.
    timeout_ms: after this time the coordinator aborts a transaction.
    start_timestamp, last_update_timestamp: in milliseconds; -1 without a transaction.
    coordinator_partition: the partition of `__transaction_state` that has the record.
    previous_producer_id, next_producer_id, next_producer_epoch: as KIP-360 and KIP-890 use them; -1 for none.
    client_transaction_version: 2 if the client uses the transactions of KIP-890.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    timeout_ms: int
    start_timestamp: int
    last_update_timestamp: int
    coordinator_partition: int
    previous_producer_id: int = -1
    next_producer_id: int = -1
    next_producer_epoch: int = -1
    client_transaction_version: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the transaction has begun, and not all of its markers are known to be written."""
        return self.state == "Ongoing" or self.state in _ENDING


@dataclass(frozen=True)
class LogTransaction:
    """An open transaction of a log, with what the coordinator knows of its producer.

    state: the state of the transactional id that has the producer id; None if there is none.
    open_ms: for how long the transaction is open at `Transactions.now`; None if its start is unknown.
    is_hanging: None if the partition of `__transaction_state` that would have the producer may be missing.
    hanging_reason: why; None if it is not hanging.
    """

    transaction: OpenTransaction
    state: TransactionState | None
    open_ms: int | None
    is_hanging: bool | None
    hanging_reason: str | None


@dataclass(frozen=True)
class Transactions:
    """The transactional ids of a directory, and the open transactions of its logs.

    states: by transactional id, sorted.
    open: the open transactions of all logs, by partition and first offset.
    now: the time to which `open_ms` relates, in milliseconds; -1 if there is neither a record nor a producer.
    unknown: the records that could not be decoded.
    notes: a line for each partition that was found in several log directories.
    """

    states: Mapping[str, TransactionState]
    open: tuple[LogTransaction, ...]
    now: int
    unknown: tuple[UnknownRecord, ...] = ()
    notes: tuple[str, ...] = ()

    def to_arrow(self) -> pa.Table:
        """Return the rows of `rows` as a table. Raises ImportError without pyarrow."""
        return arrow_table(TRANSACTION_FIELDS, self.rows())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row of `TRANSACTION_FIELDS` for each transactional id and each open transaction of a log.

        An open transaction is a row for each partition. A transactional id without one is one row, with null as topic.
        A partition that only the coordinator knows has null as `first_offset`.
        """
        in_logs: dict[str, set[TopicPartition]] = {one: set() for one in self.states}
        rows = []
        for one in self.open:
            if one.state is not None:
                in_logs[one.state.transactional_id].add(one.transaction.topic_partition)
            rows.append(_open_row(one))
        for state in self.states.values():
            left = [one for one in state.partitions if one not in in_logs[state.transactional_id]]
            rows += [_state_row(state, where, self.now) for where in left]
            if not left and not in_logs[state.transactional_id]:
                rows.append(_state_row(state, None, self.now))
        yield from sorted(rows, key=_row_order)


def transactions(
    log: Sources, *, now: int | datetime | None = None, on_damage: DamageHandler = raise_damage
) -> Transactions:
    """Read the transactional ids of `__transaction_state`, and the open transactions of all logs beside it.

    A transaction hangs if it is open in a log, and one of these is true:

    - No transactional id has its producer id. This is decided only if no partition of `__transaction_state` is missing,
      judging by their numbers.
    - The coordinator has no transaction of this producer epoch that includes the partition.
    - It is open for longer than its timeout.

    Args:
        log: the log of one partition of `__transaction_state`; or a log directory, or several. Each can be given as a
            path or URI. Open transactions of logs are read from log directories only.
        now: the time at which the ages of open transactions are computed, in milliseconds or as an aware datetime. By
            default it is the newest timestamp of the transactions' records and producers. So in a copy of a directory
            the ages are those at its last write.
        on_damage: called with each damaged range, which is then skipped.

    Raises:
        CorruptRecordError: for damage, with partition, offset, file and position, unless `on_damage` is given.
        FileNotFoundError: there is no such folder, or it has no log.
        ValueError: for a log of another topic.
    """
    sources = LogSources(log, on_damage=on_damage)
    if not sources.has(TRANSACTION_STATE) and not sources.all_partitions():
        raise FileNotFoundError(errno.ENOENT, "no log of a partition", ", ".join(map(str, sources.paths)))
    reading = _Reading(on_damage)
    notes = []
    if sources.has(TRANSACTION_STATE):
        for one in sources.internal_logs(TRANSACTION_STATE):
            reading.read_states(one.chosen)
    for where in sources.all_partitions():
        found = sources.replicas(where)
        if found is not None:
            reading.read_open(found.chosen, where)
            notes += [found.in_words()] if found.others else []
    return reading.result(None if now is None else milliseconds(now), tuple(notes))


class _Reading:
    """What is read of all logs."""

    def __init__(self, on_damage: DamageHandler) -> None:
        self._on_damage = on_damage
        self._states: dict[str, TransactionState] = {}
        self._coordinators: set[int] = set()
        self._unknown: list[UnknownRecord] = []
        self._open: list[OpenTransaction] = []
        self._newest = -1

    def read_states(self, log: PartitionLog) -> None:
        found = read_latest(log, on_damage=self._on_damage)
        where = partition_of_log(log)
        self._coordinators.add(where.partition)
        self._newest = max(self._newest, found.newest_timestamp)
        for record in found.records:
            if record.value is not None:
                self._add(where, record)

    def _add(self, where: TopicPartition, record: LastRecord) -> None:
        assert record.value is not None
        try:
            decoded = decode_transaction_record(record.key, record.value)
        except KafkaFormatError as error:
            reason = str(error)
        else:
            if decoded.type_name is not None and not isinstance(decoded.value, RawMessage):
                state = transaction_state(decoded.key, decoded.value, where.partition)
                self._states[state.transactional_id] = state
                return
            found = f"type {decoded.api_key}, version {decoded.version}"
            reason = f"expected a known type and version, found {found}"
        self._unknown.append(UnknownRecord(where, record.offset, record.key, record.value, reason))

    def read_open(self, log: PartitionLog, where: TopicPartition) -> None:
        found = open_transactions(log, where, on_damage=self._on_damage)
        self._open += found.transactions
        self._newest = max(self._newest, found.newest_timestamp)

    def result(self, now: int | None, notes: tuple[str, ...]) -> Transactions:
        now = self._newest if now is None else now
        is_complete = bool(self._coordinators) and self._coordinators == set(range(len(self._coordinators)))
        by_producer = {state.producer_id: state for state in self._states.values()}
        found = tuple(_judged(one, by_producer.get(one.producer_id), now, is_complete) for one in self._open)
        states = {name: self._states[name] for name in sorted(self._states)}
        return Transactions(states, found, now, tuple(self._unknown), notes)


def transaction_state(key: Any, value: Any, coordinator_partition: int) -> TransactionState:
    """Return the state that a decoded record describes."""
    partitions = (
        TopicPartition(one.topic, number)
        for one in value.transaction_partitions or ()
        for number in one.partition_ids
    )
    return TransactionState(
        key.transactional_id,
        _STATES.get(value.transaction_status, str(value.transaction_status)),
        value.producer_id,
        value.producer_epoch,
        tuple(sorted(partitions)),
        value.transaction_timeout_ms,
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
        coordinator_partition,
        value.previous_producer_id,
        value.next_producer_id,
        value.next_producer_epoch,
        value.client_transaction_version,
    )


def _judged(
    transaction: OpenTransaction, state: TransactionState | None, now: int, is_complete: bool
) -> LogTransaction:
    """Decide whether a transaction hangs. is_complete: no partition of the coordinators is missing."""
    is_known = state is not None and state.start_timestamp >= 0 and _includes(state, transaction)
    start = state.start_timestamp if state is not None and is_known else transaction.start_timestamp
    open_ms = max(now - start, 0) if start >= 0 and now >= 0 else None
    if state is None:
        reason = "no transactional id has this producer id" if is_complete else None
        return LogTransaction(transaction, None, open_ms, True if is_complete else None, reason)
    reason = _hanging_reason(transaction, state, open_ms)
    return LogTransaction(transaction, state, open_ms, reason is not None, reason)


def _hanging_reason(transaction: OpenTransaction, state: TransactionState, open_ms: int | None) -> str | None:
    if not state.is_open:
        return f"the coordinator has no transaction: its state is {state.state}"
    if not _has_epoch(state, transaction):
        return f"the transaction of the coordinator has producer epoch {state.producer_epoch}"
    if transaction.topic_partition not in state.partitions:
        return "the transaction of the coordinator does not include the partition"
    if open_ms is not None and open_ms > state.timeout_ms:
        return f"open for longer than its timeout of {state.timeout_ms} ms"
    return None


def _includes(state: TransactionState, transaction: OpenTransaction) -> bool:
    return state.is_open and transaction.topic_partition in state.partitions


def _has_epoch(state: TransactionState, transaction: OpenTransaction) -> bool:
    """Whether a log's transaction has the epoch of the coordinator's, which may raise it when it ends a transaction."""
    if transaction.producer_epoch == -1 or state.state in _ENDING:
        return transaction.producer_epoch <= state.producer_epoch
    return transaction.producer_epoch == state.producer_epoch


def _open_row(one: LogTransaction) -> dict[str, Any]:
    where, state = one.transaction.topic_partition, one.state
    row = _empty_row() if state is None else _id_row(state)
    start = one.transaction.start_timestamp
    if state is not None and _includes(state, one.transaction):
        start = state.start_timestamp
    return row | {
        "producer_id": one.transaction.producer_id,
        "producer_epoch": _known(one.transaction.producer_epoch),
        "topic": where.topic,
        "partition": where.partition,
        "first_offset": one.transaction.first_offset,
        "start_timestamp_ms": _known(start),
        "open_ms": one.open_ms,
        "is_hanging": one.is_hanging,
        "hanging_reason": one.hanging_reason,
    }


def _state_row(state: TransactionState, where: TopicPartition | None, now: int) -> dict[str, Any]:
    row = _id_row(state)
    if where is not None:
        row |= {"topic": where.topic, "partition": where.partition}
    if state.is_open and state.start_timestamp >= 0 and now >= 0:
        row["open_ms"] = max(now - state.start_timestamp, 0)
    return row


def _id_row(state: TransactionState) -> dict[str, Any]:
    return _empty_row() | {
        "transactional_id": state.transactional_id,
        "state": state.state,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "start_timestamp_ms": _known(state.start_timestamp),
        "timeout_ms": state.timeout_ms,
        "last_update_timestamp_ms": _known(state.last_update_timestamp),
        "coordinator_partition": state.coordinator_partition,
        "previous_producer_id": _known(state.previous_producer_id),
        "next_producer_id": _known(state.next_producer_id),
        "next_producer_epoch": _known(state.next_producer_epoch),
        "client_transaction_version": state.client_transaction_version,
    }


def _empty_row() -> dict[str, Any]:
    return dict.fromkeys((field.name for field in TRANSACTION_FIELDS), None)


def _known(value: int) -> int | None:
    """Return a number; None for -1, which stands for none."""
    return None if value == -1 else value


def _row_order(row: Mapping[str, Any]) -> tuple[str, str, int, int]:
    return row["transactional_id"] or "", row["topic"] or "", row["partition"] or 0, row["producer_id"]
