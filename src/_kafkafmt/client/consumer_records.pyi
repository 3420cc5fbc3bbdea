from typing import TypeVar

from _kafkafmt.records.decode import LocatedRecords

_Record = TypeVar("_Record")

FIELDS: tuple[str, ...]

def consumer_records(
    kind: type[_Record], located: LocatedRecords, first: int, stop: int, topic: str, partition: int
) -> list[_Record]: ...
