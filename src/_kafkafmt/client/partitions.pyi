__pyx_capi__: dict[str, object]

from typing import Any

from typing_extensions import Buffer, disjoint_base

@disjoint_base
class TopicPartitions:
    def __init__(self, by_number: dict[int, Any], available: list[Any]) -> None: ...
    def get(self, number: int) -> Any | None: ...
    def of_key(self, key: Buffer | None) -> Any: ...

@disjoint_base
class KnownTopics:
    topics: dict[str, TopicPartitions]
