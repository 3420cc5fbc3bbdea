from typing_extensions import Self, disjoint_base

from _kafkafmt.types import Codec

__pyx_capi__: dict[str, object]

@disjoint_base
class OpenBatch:
    batch_size: int | None
    estimated_ratio: float
    contingency_factor: float
    @property
    def capacity(self) -> int: ...
    @property
    def codec(self) -> Codec: ...
    @property
    def magic(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def size_in_bytes(self) -> int: ...
    @property
    def next_capacity(self) -> int: ...
    @property
    def max_record_size(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def estimated_size(self) -> int: ...
    def __init__(
        self,
        magic: int,
        codec: Codec,
        base_offset: int,
        *,
        timestamp_type: int = 0,
        log_append_time: int = -1,
        base_timestamp: int | None = None,
        last_offset: int | None = None,
        partition_leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
        batch_size: int | None = None,
        estimated_ratio: float = 1.0,
        contingency_factor: float = 1.05,
        capacity: int = 4096,
    ) -> None: ...
    def _empty(
        self, batch_size: int | None, estimated_ratio: float, contingency_factor: float, capacity: int
    ) -> Self: ...
    def __len__(self) -> int: ...
    def grow(self, capacity: int) -> None: ...
    def shrink(self, capacity: int) -> None: ...
    def _begin_next(self) -> None: ...
