"""Target: the readers of groups and of transactions.

Input: a byte that chooses the topic and where reading ends, then keys and values, each after its size in a byte (255: a
null value). Whatever they are:

- no error is raised: a record that cannot be decoded is kept, with the reason;
- of each key the last record counts, as a dictionary says;
- all rows can be made, and written as JSON and Arrow.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import kafkafmt as kf
from kafkafmt.columns.fields import arrow_table
from kafkafmt.log import PartitionLog, consumer_offsets, transactions
from kafkafmt.log.internal_topics.latest import read_latest
from kafkafmt.log.internal_topics.offsets import MEMBER_FIELDS, OFFSET_FIELDS
from kafkafmt.log.internal_topics.transactions import TRANSACTION_FIELDS

OPTIONS_LENGTH = 1
NULL = 255
RECORDS_A_BATCH = 3


def records_in(data: bytes) -> list[tuple[bytes, bytes | None]]:
    """The keys and values in an input."""
    parts: list[bytes | None] = []
    while data:
        size = data[0]
        parts.append(None if size == NULL else data[1 : 1 + size])
        data = data[1 if size == NULL else 1 + size :]
    return [(key or b"", value) for key, value in zip(parts[::2], parts[1::2], strict=False)]


def input_of(option: int, records: list[tuple[bytes, bytes | None]]) -> bytes:
    """The input with these records, whose keys and values are short."""
    found = bytes([option])
    for key, value in records:
        found += bytes([len(key)]) + key
        found += bytes([NULL]) if value is None else bytes([len(value)]) + value
    return found


def check(data: bytes) -> None:
    option, records = data[0] if data else 0, records_in(data[1:])
    with tempfile.TemporaryDirectory() as folder:
        topic = "__transaction_state" if option & 1 else "__consumer_offsets"
        path = Path(folder, f"{topic}-0", f"{0:020d}.log")
        path.parent.mkdir()
        with path.open("wb") as file:
            for first in range(0, len(records), RECORDS_A_BATCH):
                builder = kf.RecordBatchBuilder(base_offset=first)
                for key, value in records[first : first + RECORDS_A_BATCH]:
                    builder.append(first, key, value)
                file.write(builder.build())
        log, end = PartitionLog(path.parent), min(option >> 1, len(records))
        last = {record.key: record.value for record in read_latest(log, end).records}
        assert last == dict(records[:end])
        if option & 1:
            found = transactions(log)
            _check_rows(TRANSACTION_FIELDS, list(found.rows()))
        else:
            groups = consumer_offsets(log, end_offset=end)
            _check_rows(OFFSET_FIELDS, list(groups.offset_rows()))
            _check_rows(MEMBER_FIELDS, list(groups.member_rows()))


def _check_rows(fields, rows) -> None:
    assert all(list(row) == [field.name for field in fields] for row in rows)
    json.dumps(rows)
    assert arrow_table(fields, rows).num_rows == len(rows)
