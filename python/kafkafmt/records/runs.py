"""Operations on runs. A run is whole batches in one buffer, with the index of their headers.

These functions select batches by rows of the index. They do not copy batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from _kafkafmt.batches.batch_header import BatchHeader
from _kafkafmt.batches.scan import BatchRun, scan
from kafkafmt._util.buffers import flat_view
from kafkafmt.errors import KafkaFormatError
from kafkafmt.types import TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer


def whole_batches(data: BatchHeader | Buffer, origin: int = 0) -> BatchRun:
    """Return a batch, or the bytes of whole batches, as a run. origin: the position of the first byte.

    Raises KafkaFormatError for bytes that are not batches, and ValueError for a partial batch at the end.
    """
    view = flat_view(data.run.batch(data.number) if isinstance(data, BatchHeader) else data)
    run, consumed, _, _, error = scan(view, origin)
    if error is not None:
        raise error
    if consumed != view.nbytes:
        left = view.nbytes - consumed
        raise ValueError(
            f"expected whole batches, found {left} bytes of a partial batch at position {origin + consumed}"
        )
    return run


def slice_run(run: BatchRun, first: int, stop: int) -> BatchRun:
    """Return the batches from number `first` to `stop` (exclusive) as a run, without a copy of their bytes."""
    if first == 0 and stop == len(run):
        return run
    return BatchRun(run.buffer, run.index[first:stop], run.origin)


def select_batches(run: BatchRun, wanted: NDArray[Any] | list[int]) -> BatchRun:
    """Return a run of some batches of a run. wanted: a boolean per batch, or the numbers of the batches."""
    return BatchRun(run.buffer, run.index[wanted], run.origin)


def joined_runs(runs: Iterable[BatchRun]) -> list[BatchRun]:
    """Join neighbours in the same buffer, such as those between which batches were left out."""
    groups = groupby(runs, key=lambda run: (id(run.buffer), run.origin))
    return [_joined(list(group)) for _, group in groups]


def _joined(runs: list[BatchRun]) -> BatchRun:
    if len(runs) == 1:
        return runs[0]
    return BatchRun(runs[0].buffer, np.concatenate([run.index for run in runs]), runs[0].origin)


def chunk_ranges(sizes: NDArray[Any], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Divide batches of these sizes into chunks of at most `max_bytes`, or of one larger batch.

    Yields the first number and the stop number of each chunk.
    """
    ends = sizes.cumsum(dtype=np.int64)
    first, done = 0, 0
    while first < len(sizes):
        stop = max(int(ends.searchsorted(done + max_bytes, side="right")), first + 1)
        yield first, stop
        first, done = stop, int(ends[stop - 1])


def with_batch(error: KafkaFormatError, run: BatchRun, number: int) -> KafkaFormatError:
    """Set the positions and offsets of `error` to those of a batch, and return `error`."""
    return with_row(error, run.index[number])


def with_row(error: KafkaFormatError, row: np.void) -> KafkaFormatError:
    """As `with_batch`, for a row of an index."""
    error.position = int(row["position"])
    error.next_position = error.position + int(row["size"])
    error.base_offset = int(row["base_offset"]) if row["base_offset"] >= 0 else None
    error.last_offset = int(row["last_offset"])
    return error


def without_control(run: BatchRun, *, verify: bool) -> BatchRun:
    """Return a run without its control batches; see `without`."""
    return without(run, run.index["is_control"], verify=verify)


def without(run: BatchRun, left_out: NDArray[np.bool_], *, verify: bool) -> BatchRun:
    """Return a run without the batches of a mask.

    verify: check the CRCs of the batches that are left out. If one does not match, the returned run ends with that
    batch, so that a reader that checks CRCs raises its error after the batches before it. Without `verify`, a damaged
    header may cause records to be left out.
    """
    if not left_out.any():
        return run
    wanted = ~left_out
    if verify:
        damaged = left_out.nonzero()[0][~select_batches(run, left_out).valid()]
        if len(damaged):
            wanted[damaged[0]] = True
            wanted[damaged[0] + 1 :] = False
    return select_batches(run, wanted)


def sound_part(run: BatchRun) -> tuple[BatchRun, KafkaFormatError | None]:
    """Return the batches before the first one whose CRC does not match, and its error; else the run and None."""
    try:
        run.ensure_valid()
    except KafkaFormatError as error:
        stop = int(run.index["position"].searchsorted(error.position or 0))
        return slice_run(run, 0, stop), error.with_traceback(None)
    return run, None


def first_offset(run: BatchRun, number: int = 0) -> int:
    """Return the first offset of a batch, or the last one of a v0/v1 wrapper, whose header has no other."""
    row = run.index[number]
    return int(row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"])


def first_offsets(rows: NDArray[np.void]) -> NDArray[np.int64]:
    """Return the `first_offset` of each batch of an index."""
    return np.where(rows["base_offset"] >= 0, rows["base_offset"], rows["last_offset"])


def out_of_order(rows: NDArray[np.void], next_offset: int) -> NDArray[np.bool_]:
    """Return a mask of the batches with offsets below `next_offset`, or not above those of the batch before.

    The header of a v0/v1 wrapper has no base offset, so only its last offset is compared.
    """
    firsts, lasts = first_offsets(rows), rows["last_offset"]
    wrong: NDArray[np.bool_] = lasts < firsts
    wrong[:1] |= firsts[:1] < next_offset
    wrong[1:] |= firsts[1:] <= lasts[:-1]
    return wrong


def first_misplaced(
    rows: NDArray[np.void],
    next_offset: int,
    bound: int | None = None,
    following: Callable[[], BatchRun | None] = lambda: None,
) -> tuple[int, str]:
    """Return the number of the first batch whose offsets cannot be right, and what was expected; `len(rows)` without.

    No CRC covers a base offset. If two sound batches on one side contradict a moved one, that one is found.

    next_offset: the lowest offset that is possible. bound: all batches end below it; None if it is not known.
    following: returns the sound batches after `rows`; None at the end of the log. It is called only if they decide.
    """
    firsts, lasts = first_offsets(rows), rows["last_offset"]
    number, message = len(rows), ""
    wrong = out_of_order(rows, next_offset)
    if wrong.any():
        number = int(wrong.argmax())
        expected = int(lasts[number - 1]) + 1 if number else next_offset
        message = f"expected {expected} or more, found {firsts[number]}"
        least = int(lasts[number - 2]) + 1 if number > 1 else next_offset
        # The one before is wrong if two batches after it contradict it. If there is only one, it is wrong if that one
        # fits without it, and there is a gap before it.
        fits = firsts[number] >= least and firsts[number - 1] != least
        after = _first_after(rows, number, following) if number else None
        if number and (fits if after is None else after < expected):
            number -= 1
            message = (
                f"expected less than {firsts[number + 1]}, that of the next batch, found {lasts[number]}"
            )
    if bound is not None and (beyond := lasts[:number] >= bound).any():
        number = int(beyond.argmax())
        message = f"expected less than {bound}, where the log continues or ends, found {lasts[number]}"
    return number, message


def _first_after(rows: NDArray[np.void], number: int, following: Callable[[], BatchRun | None]) -> int | None:
    """Return the `first_offset` of the batch after number `number`; None at the end of the log."""
    if number + 1 < len(rows):
        return int(first_offsets(rows[number + 1 : number + 2])[0])
    run = following()
    return None if run is None else first_offset(run)


def expected_of_last(rows: NDArray[np.void], base_offset: int) -> int | None:
    """Return the lowest offset that the last batch of an index can have, if it begins below; else None.

    It is also None if the batch before the last is the damaged one. Three rows are enough to tell.

    base_offset: no batch begins below it.
    """
    if len(rows) > 1 and first_misplaced(rows, base_offset)[0] == len(rows) - 1:
        return int(rows["last_offset"][-2]) + 1
    return None


def first_timestamps(rows: NDArray[np.void]) -> NDArray[np.int64]:
    """Return the timestamp of the first record of each batch of an index; the highest one if the header lacks it.

    `base_timestamp` is no record's timestamp under LogAppendTime, or if it holds a delete horizon.
    """
    is_first = (rows["timestamp_type"] != TimestampType.LOG_APPEND_TIME) & ~rows["has_delete_horizon"]
    return np.where(is_first, rows["base_timestamp"], rows["max_timestamp"])


def of_aborted_transactions(rows: NDArray[np.void], transactions: Iterable[Any]) -> NDArray[np.bool_]:
    """Return a mask of the batches of an index that belong to aborted transactions (KIP-98).

    transactions: those of a fetch response, with `producer_id` and `first_offset`. A producer has one open transaction
    at most: its first control batch after `first_offset` is the marker that ends the transaction.
    """
    of_producers: dict[int, list[int]] = defaultdict(list)
    for transaction in transactions:
        of_producers[transaction.producer_id].append(transaction.first_offset)
    found = np.zeros(len(rows), np.bool_)
    base_offsets, last_offsets, is_control = rows["base_offset"], rows["last_offset"], rows["is_control"]
    transactional = rows["is_transactional"] & ~is_control
    for producer_id, numbers in _batches_of_producers(rows, of_producers):
        markers = base_offsets[numbers[is_control[numbers]]]
        batches = numbers[transactional[numbers]]
        begun = np.sort(np.array(of_producers[producer_id]))
        latest = begun.searchsorted(last_offsets[batches], "right") - 1
        is_open = markers.searchsorted(base_offsets[batches]) == markers.searchsorted(begun)[latest]
        found[batches] = is_open & (latest >= 0)
    return found


def of_ended_transactions(rows: NDArray[np.void], transactions: Iterable[Any]) -> NDArray[np.bool_]:
    """Return a mask of the batches of an index that belong to aborted transactions whose ends are known.

    transactions: those of an index of aborted transactions, with `producer_id`, `first_offset` and `last_offset`.
    """
    found = np.zeros(len(rows), np.bool_)
    transactional = rows["is_transactional"] & ~rows["is_control"]
    if not transactional.any():
        return found
    base_offsets, last_offsets = rows["base_offset"], rows["last_offset"]
    first, last = int(last_offsets[0]), int(last_offsets[-1])
    of_producers: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for transaction in transactions:
        if transaction.first_offset <= last and transaction.last_offset >= first:
            of_producers[transaction.producer_id].append((transaction.first_offset, transaction.last_offset))
    for producer_id, numbers in _batches_of_producers(rows, of_producers):
        begun, ended = np.array(sorted(of_producers[producer_id])).T
        batches = numbers[transactional[numbers]]
        latest = begun.searchsorted(base_offsets[batches], "right") - 1
        last_end = np.maximum.accumulate(ended)  # of the transactions up to each
        found[batches] = (latest >= 0) & (last_end[latest] >= last_offsets[batches])
    return found


def _batches_of_producers(
    rows: NDArray[np.void], producer_ids: Collection[int]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each of some producers that has batches, and the numbers of these, ascending."""
    if not producer_ids:
        return
    ids = rows["producer_id"]
    order = ids.argsort(kind="stable")
    for numbers in np.split(order, np.flatnonzero(np.diff(ids[order])) + 1):
        if len(numbers) and (producer_id := int(ids[numbers[0]])) in producer_ids:
            yield producer_id, numbers
