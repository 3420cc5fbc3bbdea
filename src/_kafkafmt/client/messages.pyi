from typing import final

__pyx_capi__: dict[str, object]

@final
class RequestHeader:
    @property
    def version(self) -> int: ...
    @property
    def correlation_id(self) -> int: ...
    @property
    def client_id(self) -> bytes | None: ...
    def __init__(self, version: int, correlation_id: int, client_id: bytes | None) -> None: ...

@final
class Topics:
    def __init__(self, topics: list[bytes], are_ids: bool) -> None: ...
