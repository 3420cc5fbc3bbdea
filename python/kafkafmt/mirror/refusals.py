"""Errors about rights that a user lacks: they name the cluster, what was tried, and the right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import kafka.errors as kafka_errors

from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from kafkafmt.mirror.addresses import ClusterAddress

Kind = Literal["topic", "group", "cluster"]
_KINDS: dict[Kind, type[kafka_errors.KafkaError]] = {
    "topic": kafka_errors.TopicAuthorizationFailedError,
    "group": kafka_errors.GroupAuthorizationFailedError,
    "cluster": kafka_errors.ClusterAuthorizationFailedError,
}


class RefusedError(MirrorError, kafka_errors.AuthorizationError):  # type: ignore[misc]
    """The user lacks a right at a cluster."""

    def __str__(self) -> str:
        return str(self.args[0])  # kafka-python's errors put their class before the message


@dataclass(frozen=True)
class Right:
    """A right that a request needs.

    name: of the topic or group; None if the errors of kafka-python have it.
    """

    operation: str
    kind: Kind
    name: str | None = None

    def place(self, error: kafka_errors.AuthorizationError) -> str:
        """Return what the right is missing on, with the name or the names of the error."""
        if self.kind == "cluster":
            return "the cluster"
        name = _names(error) if self.name is None else self.name
        return f"{self.kind} {name}" if name else f"a {self.kind}"


# Brokers before 2.8 need it of idempotent producers.
IDEMPOTENT_WRITE = Right("IdempotentWrite", "cluster")


@contextmanager
def naming_refusals(address: ClusterAddress, tried: str, *rights: Right) -> Iterator[None]:
    """Raise RefusedError in place of an error of kafka-python about a right.

    tried: what the block does. rights: those that it needs. If the error is about another kind of right, the message
    has the text of the error.
    """
    try:
        yield
    except RefusedError:
        raise
    except kafka_errors.AuthorizationError as error:
        missing = next((right for right in rights if isinstance(error, _KINDS[right.kind])), None)
        reason = (
            str(error)
            if missing is None
            else f"this user needs the right {missing.operation} on {missing.place(error)}"
        )
        raise RefusedError(f"{address}: {tried} was refused: {reason}") from None


def _names(error: kafka_errors.AuthorizationError) -> str:
    found = error.args[0] if error.args else ""
    return ", ".join(sorted(found)) if isinstance(found, set | frozenset | list | tuple) else str(found)
