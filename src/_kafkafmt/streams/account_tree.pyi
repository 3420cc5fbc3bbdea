from typing import Any, final

from typing_extensions import Self, disjoint_base

__pyx_capi__: dict[str, object]

@final
class Line: ...

@disjoint_base
class AccountCounts:
    def __new__(cls, *_: object, **__: object) -> Self: ...
    @property
    def _is_turn_taken(self) -> bool: ...

@disjoint_base
class Request:
    @property
    def owner(self) -> Any: ...
    @property
    def is_in_line(self) -> bool: ...
    @property
    def is_served(self) -> bool: ...
