"""Logs of partitions for tests of what buffers them: batches of every format and codec, and the rows they hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

import reference as ref
from _kafkafmt.batches.scan import BatchRun, scan
from records.samples import empty_batch, end_marker
from reference import Row

FORMATS = (
    [(0, codec) for codec in range(4)]
    + [(1, codec) for codec in range(4)]
    + [(2, codec) for codec in range(5)]
)


class Log(NamedTuple):
    """Batches end to end, and their records but for markers."""

    data: bytes
    rows: list[Row]

    def run(self, offset: int = 0, run_bytes: int = 1 << 30) -> BatchRun | None:
        """The whole batches from the one that holds `offset` on, about `run_bytes` of them; None at the end."""
        run, *_ = scan(self.data)
        numbers = [i for i, last in enumerate(run.index["last_offset"]) if last >= offset]
        if not numbers:
            return None
        position = int(run.index["position"][numbers[0]])
        ends = run.index["position"] + run.index["size"]
        stop = max(int(ends.searchsorted(position + run_bytes, side="right")), numbers[0] + 1)
        memory = bytearray(self.data[position : int(ends[stop - 1])])
        return BatchRun(memory, run.index[numbers[0] : stop], position)


def overwrite(run: BatchRun) -> None:
    """Use the memory of a run again, as readers do."""
    memory: Any = run.buffer
    memory[:] = b"\xee" * len(memory)


def log_of(*batches: bytes) -> Log:
    data = b"".join(batches)
    rows = [row for batch in ref.read(data) if not batch.is_control for row in batch.rows()]
    return Log(data, rows)


@st.composite
def rows_of_batch(draw: st.DrawFn, offset: int) -> list[Row]:
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        key = draw(st.none() | st.binary(max_size=3))
        value = draw(st.none() | st.binary(max_size=6) | st.just(b"long" * 50))
        rows.append(Row(offset, draw(st.integers(0, 30)), key, value))
        offset += draw(st.sampled_from([1, 1, 1, 3]))
    return rows


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A log of some batches of any format, control batches, empty and compacted ones between them."""
    offset, batches = draw(st.integers(0, 3)), []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["records"] * 6 + ["marker", "empty"]))
        if kind == "marker":
            batches.append(end_marker(offset, commit=True))
            offset += 1
            continue
        if kind == "empty":
            batches.append(empty_batch(offset, 2))
            offset += 3
            continue
        magic, codec = draw(st.sampled_from(FORMATS))
        rows = draw(rows_of_batch(offset))
        attributes = draw(st.sampled_from([0, ref.TIMESTAMP_TYPE])) if magic else 0
        if magic == 2:
            fields: dict[str, Any] = {}
            if attributes:
                fields["max_timestamp"] = draw(st.integers(0, 30))
            elif draw(st.booleans()):
                attributes, fields["base_timestamp"] = ref.DELETE_HORIZON, draw(st.integers(0, 60))
            last = rows[-1].offset + draw(st.integers(0, 2))
            fields |= {"base_offset": offset, "last_offset_delta": last - offset}
            batches.append(ref.batch_of(rows, codec=codec, attributes=attributes, **fields))
            offset = last + 1
        else:
            if codec == ref.NONE:
                batches.append(ref.messages(magic, rows, attributes=attributes))
            else:
                batches.append(ref.wrapper(magic, codec, rows, attributes=attributes))
            offset = rows[-1].offset + 1
    return log_of(*batches)
