from collections.abc import Iterator
from typing import final

from typing_extensions import Self

from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.types import LastRecord

@final
class LastRecords:
    null_keys: int
    @property
    def used_bytes(self) -> int: ...
    def __new__(cls, *, seed: int | None = None) -> Self: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[LastRecord]: ...
    def add(self, located: LocatedRecords) -> None: ...
