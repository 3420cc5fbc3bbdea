"""The exact size of converted records, before they are converted (KIP-283, "Determining Total Response Size").

The KIP promises an estimate: the size of the source, or of the first converted batch if that is larger. A smaller
result is padded, a larger one is cut. For uncompressed batches the exact size follows from a walk over their records,
which writes nothing. So the response needs no padding, and ends after a whole batch.

The walk reads the source once more than the conversion does, and takes about a third of its time. So it is made only
if it costs less than it saves (`python -m bench.experiments.exact_size`):

- Another read is cheap: the source is in memory or in a local file.
- The size changes by `LEAST_CHANGE` or more, as the first batch shows. The smaller the records, the more it changes.
- It reads `MOST_WALKED_BYTES` at most, because it runs before the response begins.

Compressed batches keep the KIP's estimate: their size is known only after compression. If the records are walked in
part, the promise is the exact size of that part plus the estimate of the rest.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from _kafkafmt.records.converted_size import converted_size
from kafkafmt.convert.chunks import QUICK_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.types import Codec

if TYPE_CHECKING:
    import numpy as np

    from kafkafmt.records.base import Records

LEAST_CHANGE = 0.08
MOST_WALKED_BYTES = 4 * 1024 * 1024
# Runs of this size stay in the processor's cache between their read and their walk.
_RUN_BYTES = 256 * 1024


class Promise(NamedTuple):
    """The bytes that are promised, and the position in the source where the records end that are sent for them."""

    size_bytes: int
    end_position: int


def is_worthwhile(source: Records, first: np.void, converted_bytes: int, first_offset: int) -> bool:
    """Return whether the exact size saves more than the walk costs.

    first: the index row of the first batch with a result. converted_bytes: the size of that result, without records
    below the first offset.
    """
    if source.is_remote or first["codec"] != Codec.NONE:
        return False
    base, last, size = int(first["base_offset"]), int(first["last_offset"]), int(first["size"])
    kept = last + 1 - max(base, first_offset)
    if kept <= 0:
        return False
    whole_bytes = converted_bytes * (last + 1 - base) / kept
    return abs(whole_bytes - size) >= LEAST_CHANGE * size


def walk(
    source: Records, position: int, size_bytes: int, to_magic: int, first_offset: int, limit_bytes: int
) -> Promise:
    """Return the promise for converted records: as many whole batches as fit into `limit_bytes`.

    position: of the batch after the first one with a result. size_bytes: the size of that result, which is promised
    even if it exceeds the limit.
    """
    limit = max(limit_bytes, size_bytes)
    walk_end = position + MOST_WALKED_BYTES
    memory = bytearray(min(_RUN_BYTES, source.end_position - position))
    with suppress(KafkaFormatError):  # the conversion raises it
        while position < walk_end:
            run = source.first_run(position, _RUN_BYTES, memory, QUICK_BYTES)
            if run is None:
                if source.size_at(position) is None:  # no whole batch is left
                    return Promise(size_bytes, position)
                break  # a large batch
            stop, more, is_full = converted_size(run, to_magic, first_offset, limit - size_bytes)
            size_bytes += more
            if stop < len(run):
                position = int(run.index["position"][stop])
                if is_full:
                    return Promise(size_bytes, position)
                break
            position = run.end_position
    return Promise(min(size_bytes + source.end_position - position, limit), source.end_position)
