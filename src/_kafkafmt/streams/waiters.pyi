from collections.abc import Callable
from typing import SupportsIndex, final

from typing_extensions import Self

from _kafkafmt.streams.account_tree import AccountCounts, Request
from _kafkafmt.streams.reservations import Reservation

@final
class Waiter(Request):
    def __new__(
        cls,
        account: AccountCounts,
        size_bytes: SupportsIndex,
        on_wake: Callable[[], object] | None = None,
        takes_turn: bool = False,
        owner: object = None,
    ) -> Self: ...
    def enlist(self) -> None: ...
    def wait(self, timeout_seconds: float) -> None: ...
    def take(self) -> Reservation: ...
    def leave(self, waited_seconds: float) -> None: ...
