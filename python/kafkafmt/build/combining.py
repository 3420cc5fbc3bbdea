"""Combine small batches of a partition into larger ones before they are sent to a broker.

A broker takes one batch of a partition in a request, and a request costs far more than a small batch. So small batches
are combined natively, without a Python object for each record. Large batches are forwarded as they are. To copy them,
or to decompress and compress them again, costs more than their requests.

A batch is small if it takes less than a fraction of `batch_size` as it is stored, which depends on its codec
(`SMALL_FRACTIONS`). Only neighbours with the same codec and timestamp type are combined. Records keep their bytes,
their order, and the timestamps that consumers saw.

Transactions and producers. A broker writes the state of the sender into all batches that it sends, so the target has
neither the source's producers nor its transactions. A reader with `read_committed` gets committed records only, and
these may be combined. With `read_uncommitted` some transactions may be open or aborted. Then a transactional batch is
combined only with the batches of the same producer right after it, so no batch mixes records of two transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.records.combine import RecordCombiner
from _kafkafmt.wire.layout import CODEC_MASK, RECORD_BATCH_OVERHEAD
from kafkafmt import codecs
from kafkafmt.build.estimator import RecentRatioEstimator
from kafkafmt.types import Codec, Isolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A batch is small below this fraction of `batch_size`, as it is stored. At these sizes combining takes about as much
# processor time as a request: the slower the codec, the smaller. Measured with batches that shrink 5 to 10 times.
SMALL_FRACTIONS = {Codec.NONE: 4, Codec.SNAPPY: 32, Codec.LZ4: 32, Codec.ZSTD: 64, Codec.GZIP: 128}
# The records of a combined batch take at most so many times `batch_size` before compression.
_MAX_EXPANSION = 4
# The estimator is for one topic.
_TOPIC = ""


class CombinedBatch(NamedTuple):
    """A batch that was made of several, alone in its run, and the offset ranges of its records in the source.

    sources, counts: the first offsets of the ranges, and their numbers of records.
    """

    run: BatchRun
    sources: NDArray[np.int64]
    counts: NDArray[np.int64]


def record_combiner(max_decompressed_bytes: int) -> RecordCombiner:
    """Return a kernel that combines records, with its memory.

    max_decompressed_bytes: the most bytes of a batch before compression, both of one that is opened and of a new one.
    """
    decompress = {int(codec): known.decompress for codec, known in codecs.CODECS.items()}
    return RecordCombiner(decompress, max_decompressed_bytes)


class BatchCombiner:
    """Finds small batches of a topic and combines them.

    batch_size: the most bytes of a combined batch.
    isolation: of the reader of the batches.
    kernel: combines the records. The combiners of several topics may share it; None for a kernel of its own.
    reuses_memory: whether a combined batch is valid only until the next one is requested, of any combiner with the same
        kernel. If not, each owns its bytes.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        isolation: Isolation = "read_committed",
        kernel: RecordCombiner | None = None,
        reuses_memory: bool = False,
    ) -> None:
        self._batch_size = batch_size
        self._reuses_memory = reuses_memory
        self._keeps_transactions_apart = isolation == "read_uncommitted"
        if kernel is None:  # an empty kernel is false
            kernel = record_combiner(codecs.DEFAULT_MAX_DECOMPRESSED_BYTES)
        self._kernel = kernel
        self._estimator = RecentRatioEstimator()
        # By codec. No batch with an unknown codec is small.
        self._small_sizes = np.zeros(CODEC_MASK + 1, np.int64)
        for codec, fraction in SMALL_FRACTIONS.items():
            self._small_sizes[codec] = batch_size // fraction
            # From a ratio of 1.0, batches that shrink much would have no room for a second one, and none be observed.
            self._estimator.set(_TOPIC, codec, 1 / _MAX_EXPANSION)

    def groups(
        self, rows: NDArray[np.void], is_left_out: NDArray[np.bool_], max_message_bytes: int | None
    ) -> list[NDArray[np.int64]]:
        """Return the numbers of the batches in each group of small neighbours, of two batches or more.

        rows: the index rows of the batches. is_left_out: a mask of those that are not forwarded. They separate no
        neighbours. max_message_bytes: the most bytes of a batch that the target takes.
        """
        numbers = (~is_left_out).nonzero()[0]
        # Columns are selected one by one, because numpy copies whole rows field by field.
        is_small = (rows["magic"] == 2) & ~rows["is_control"] & (rows["count"] > 0)
        is_small &= rows["size"] < self._small_sizes[rows["codec"]]
        if max_message_bytes is not None:
            is_small &= rows["size"] <= max_message_bytes
        is_small = is_small[numbers]
        joins = np.zeros(len(numbers) + 1, np.bool_)  # whether a batch is combined with the one before it
        joins[1:-1] = is_small[1:] & is_small[:-1]
        for name in ("codec", "timestamp_type"):
            column = rows[name][numbers]
            joins[1:-1] &= column[1:] == column[:-1]
        if self._keeps_transactions_apart:
            joins[1:-1] &= _of_one_transaction(rows, numbers)
        edges = np.flatnonzero(np.diff(joins))
        return [numbers[first : stop + 1] for first, stop in edges.reshape(-1, 2).tolist()]

    def combine(
        self,
        run: BatchRun,
        numbers: NDArray[np.int64],
        *,
        max_message_bytes: int | None,
        log_append_time: bool,
    ) -> Iterator[tuple[NDArray[np.int64], CombinedBatch | None]]:
        """Yield the batches of a group in parts, each with the batch that was made of it.

        That is None for a single batch, which is to be forwarded as any other: it has no neighbour that fits, or its
        records are not valid. The caller has checked the CRCs.

        max_message_bytes: the most bytes of a batch that the target takes.
        log_append_time: whether the records of a batch with LogAppendTime get the time of that batch.
        """
        codec = Codec(int(run.index["codec"][numbers[0]]))
        limit = min(self._batch_size, max_message_bytes or self._batch_size)
        first, end = 0, len(numbers)
        while first < len(numbers):
            max_size = max(self._goal(codec, limit), RECORD_BATCH_OVERHEAD)
            stop = self._kernel.gather(run, numbers[:end], first, max_size, log_append_time=log_append_time)
            stop = max(stop, first + 1)
            made = self._built(codec) if stop - first > 1 else None
            if made is not None and made.run.index["size"][0] > limit:
                end = first + (stop - first + 1) // 2  # it compresses worse than expected
                continue
            yield numbers[first:stop], made
            first, end = stop, len(numbers)

    def _goal(self, codec: Codec, limit: int) -> int:
        """Return the most bytes of records before compression, so that the batch is expected to take `limit` bytes."""
        if codec == Codec.NONE:
            return limit
        ratio = self._estimator.estimate(_TOPIC, codec) * self._estimator.contingency_factor
        return int(limit / max(ratio, 1 / _MAX_EXPANSION))

    def _built(self, codec: Codec) -> CombinedBatch:
        sources, counts = self._kernel.source_ranges()
        records_size = self._kernel.records_size
        batch = self._kernel.build(int(codec), _compress_of(codec))
        if codec != Codec.NONE:
            self._estimator.observe(_TOPIC, codec, len(batch) / records_size)
        return CombinedBatch(scan(batch if self._reuses_memory else bytes(batch))[0], sources, counts)


def _of_one_transaction(rows: NDArray[np.void], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each of these batches but the first whether it may be combined with the one before it.

    Transactions may be open or aborted. Both are of no transaction, or the second one directly follows the first in a
    transaction. A marker between them would have an offset.
    """
    before, after = numbers[:-1], numbers[1:]
    transactional = rows["is_transactional"]
    follows = transactional[before] & transactional[after]
    follows &= rows["last_offset"][before] + 1 == rows["base_offset"][after]
    for name in ("producer_id", "producer_epoch"):
        follows &= rows[name][before] == rows[name][after]
    return np.asarray(follows | ~(transactional[before] | transactional[after]))


def _compress_of(codec: Codec) -> Callable[[memoryview], bytes] | None:
    compress = codecs.CODECS[codec].compress
    return None if codec == Codec.NONE else lambda records: compress(records, None, 2)
