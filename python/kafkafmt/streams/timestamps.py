"""Timestamps that are not those of the records: what a user's function returns, or what JSON data contains.

Memory Management in Kafka Streams, "Deserialized Objects Buffering": a custom timestamp extractor needs the record's
data before the record is chosen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from kafkafmt._util.user_errors import UserError
from kafkafmt.types import milliseconds

if TYPE_CHECKING:
    from typing import TypeAlias

    from _kafkafmt.records.decode import Record
    from kafkafmt.types import TopicPartition

    TimestampExtractor: TypeAlias = Callable[[Record, int], int]

_SHOWN_BYTES = 100


class TimestampError(UserError, ValueError):
    """A timestamp extractor raised an error, or returned no timestamp. The error that it raised is the cause.

    topic_partition, offset: of the record that it was called with.
    """

    def __init__(self, topic_partition: TopicPartition, offset: int, message: str) -> None:
        super().__init__(f"{topic_partition}: timestamp extractor: the record at offset {offset}: {message}")
        self.topic_partition = topic_partition
        self.offset = offset


def json_timestamp(part: Literal["key", "value"], path: str) -> TimestampExtractor:
    """Return an extractor that reads the timestamp at a JSONPath of the key or the value.

    A number is in milliseconds since 1970; a fraction of a millisecond is cut off. A string is a date and time of ISO
    8601, in UTC unless it has an offset. The extractor raises ValueError for data that is not JSON, for a path with no
    value or several, and for other values.

    Raises ValueError if the path is not valid, and ImportError without the extra `json`.
    """
    from jsonpath_ng.exceptions import JSONPathError
    from jsonpath_ng.parser import parse

    try:
        find = parse(path).find
    except JSONPathError as error:
        raise ValueError(f"{path!r}: expected a JSONPath, as $.created_at: {error}") from None

    def extract(record: Record, _: int) -> int:
        data = record.key if part == "key" else record.value
        if data is None:
            raise ValueError(f"expected JSON as the {part}, found none")
        try:
            document = json.loads(data)
        except ValueError as error:
            raise ValueError(f"expected JSON as the {part}, found {data[:_SHOWN_BYTES]!r}: {error}") from None
        found = find(document)
        if len(found) != 1:
            raise ValueError(f"expected one value at {path} of the {part}, found {len(found)}")
        return _as_timestamp(found[0].value)

    return extract


def _as_timestamp(value: Any) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        try:
            # Python 3.10 does not know Z.
            moment = datetime.fromisoformat(f"{value[:-1]}+00:00" if value.endswith(("Z", "z")) else value)
        except ValueError:
            pass
        else:
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=timezone.utc)
            return milliseconds(moment)
    raise ValueError(f"expected milliseconds, or a date and time of ISO 8601, found {value!r}")
