"""Building one record batch, record by record."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.encode import RecordEncoder, wrap_messages
from _kafkafmt.layout import MESSAGE_OVERHEAD_V0, MESSAGE_OVERHEAD_V1, RECORD_BATCH_OVERHEAD
from _kafkafmt.scan import INDEX_DTYPE
from kafkafmt import codecs
from kafkafmt.batch import seal
from kafkafmt.types import Codec, TimestampType

if TYPE_CHECKING:
    from typing_extensions import Buffer

Headers = Iterable["tuple[str | bytes, Buffer | None]"]

# The factor that the estimated ratio is multiplied with, for contingency (KIP-126).
COMPRESSION_RATIO_ESTIMATION_FACTOR = 1.05


class RecordBatchBuilder:
    """Builds a record batch (v2), or a message set of format v0 or v1: wrapped where compressed, else plain.

    level: the codec's, where it has levels. log_append_time: the timestamp of all records, for
    timestamp_type LOG_APPEND_TIME. delete_horizon_ms: sets the horizon, which takes the base timestamp's
    place. last_offset: the last offset the batch covers, where that is past its last record, as after
    compaction; with it a v2 batch may have no records at all. partition_leader_epoch and those of the
    producer: v2 only. batch_size: what `has_room_for` compares with, in bytes; estimated_ratio: the
    compression ratio that `estimated_size` reckons with (KIP-126).

    >>> builder = RecordBatchBuilder(codec=Codec.LZ4)
    >>> builder.append(1_700_000_000_000, b"key", b"value", [("trace", b"1")])
    >>> len(builder.build()) > 61
    True
    """

    def __init__(
        self,
        magic: int = 2,
        codec: Codec = Codec.NONE,
        *,
        level: int | None = None,
        base_offset: int = 0,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        log_append_time: int | None = None,
        delete_horizon_ms: int | None = None,
        last_offset: int | None = None,
        partition_leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
        batch_size: int | None = None,
        estimated_ratio: float = 1.0,
    ) -> None:
        is_log_append = timestamp_type == TimestampType.LOG_APPEND_TIME
        if is_log_append != (log_append_time is not None):
            raise ValueError(
                "log_append_time: expected with timestamp_type LOG_APPEND_TIME, and only with it"
            )
        if magic < 2 and (
            is_transactional or is_control or producer_id >= 0 or delete_horizon_ms is not None
        ):
            raise ValueError(
                f"producer state, control and delete horizon need message format v2, not v{magic}"
            )
        if magic < 2 and codec == Codec.ZSTD:
            raise ValueError(f"zstd needs message format v2, not v{magic}")
        if magic == 0 and is_log_append:
            raise ValueError("message format v0 has no timestamps")
        if is_transactional and producer_id < 0:
            raise ValueError("a transactional batch needs a producer_id")
        if last_offset is not None and (magic < 2 or last_offset < base_offset):
            raise ValueError(
                f"last_offset: expected {base_offset} or more, in format v2, found {last_offset}"
            )
        self.magic, self.codec = magic, Codec(codec)
        self.batch_size, self.estimated_ratio = batch_size, estimated_ratio
        self._level = level
        self._encoder = RecordEncoder(
            magic,
            base_offset,
            base_timestamp=delete_horizon_ms,
            log_append_time=log_append_time,
            message_base=base_offset if magic == 1 and codec != Codec.NONE else 0,
        )
        header = np.zeros(1, INDEX_DTYPE)
        header["magic"], header["codec"], header["timestamp_type"] = magic, codec, timestamp_type
        header["base_offset"] = base_offset
        header["last_offset"] = base_offset - 1 if last_offset is None else last_offset
        header["partition_leader_epoch"] = partition_leader_epoch
        header["producer_id"], header["producer_epoch"] = producer_id, producer_epoch
        header["base_sequence"] = base_sequence
        header["is_transactional"], header["is_control"] = is_transactional, is_control
        header["has_delete_horizon"] = delete_horizon_ms is not None
        self._header = header

    def __len__(self) -> int:
        """Records so far."""
        return self._encoder.count

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> None:
        """Append a record at the next offset; see `append_with_offset`."""
        self.append_with_offset(self._encoder.last_offset + 1, timestamp, key, value, headers)

    def append_with_offset(
        self, offset: int, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()
    ) -> None:
        """Append a record.

        timestamp: milliseconds, -1 for none. headers: pairs of a str (or bytes) and bytes or None; v2 only.
        Raises ValueError where the offset does not ascend or is 2^31 past the base offset, and OverflowError
        where the batch would take 2 GiB.
        """
        self._encoder.append(index(offset), index(timestamp), key, value, headers)

    def append_end_transaction_marker(
        self, timestamp: int, *, commit: bool, coordinator_epoch: int = 0
    ) -> None:
        """Append the record of a control batch that ends a transaction (KIP-98, "Control Messages")."""
        if not self._header["is_control"][0]:
            raise ValueError("a transaction marker belongs into a batch with is_control=True")
        self.append(timestamp, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator_epoch))

    @property
    def estimated_size(self) -> int:
        """Bytes that `build` is expected to return: compressed records by `estimated_ratio` and 1.05."""
        records = self._encoder.size_in_bytes
        if self.codec == Codec.NONE:
            return records + (RECORD_BATCH_OVERHEAD if self.magic == 2 else 0)
        # In 32-bit floats, as Kafka has it, so that batches end at the same record.
        ratio = np.float32(self.estimated_ratio) * np.float32(COMPRESSION_RATIO_ESTIMATION_FACTOR)
        return self._header_size + int(np.float32(records) * ratio)

    @property
    def _header_size(self) -> int:
        if self.magic == 2:
            return RECORD_BATCH_OVERHEAD
        return MESSAGE_OVERHEAD_V1 if self.magic == 1 else MESSAGE_OVERHEAD_V0

    def has_room_for(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str | bytes, Buffer | None]] = (),
    ) -> bool:
        """Does one more record fit into `batch_size`? A first one always does; without `batch_size`, any.

        The new record counts uncompressed, as in Kafka's MemoryRecordsBuilder.
        """
        if self.batch_size is None or not len(self):
            return True
        key_size = -1 if key is None else memoryview(key).nbytes
        value_size = -1 if value is None else memoryview(value).nbytes
        size = self._encoder.size_of(timestamp, key_size, value_size, headers)
        return self.estimated_size + size <= self.batch_size

    def build(self) -> bytes:
        """The bytes of the batch; empty where there are no records and no `last_offset`."""
        encoder = self._encoder
        if not encoder.count and (self.magic < 2 or self._header["last_offset"][0] < encoder.base_offset):
            return b""
        records = encoder.take()
        header = self._header.copy()
        header["last_offset"] = max(int(header["last_offset"][0]), encoder.last_offset)
        header["base_timestamp"], header["max_timestamp"] = encoder.base_timestamp, encoder.max_timestamp
        header["count"] = encoder.count
        if self.magic == 2:
            return bytes(seal(records, header, self.codec, self._level))
        if self.codec == Codec.NONE:
            return bytes(records)
        payload = codecs.compress(self.codec, records, level=self._level, magic=self.magic)
        return bytes(wrap_messages(payload, header))
