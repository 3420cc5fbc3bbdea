"""Errors about rights that a user lacks: they name the cluster, what was tried, and the right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors

from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from kafkafmt.mirror.addresses import ClusterAddress

# What the errors of kafka-python are about.
_KINDS = {
    kafka_errors.TopicAuthorizationFailedError: "topic",
    kafka_errors.GroupAuthorizationFailedError: "group",
    kafka_errors.TransactionalIdAuthorizationFailedError: "transactional id",
}


class RefusedError(MirrorError, kafka_errors.AuthorizationError):  # type: ignore[misc]
    """The user lacks a right at a cluster."""

    def __str__(self) -> str:
        return str(self.args[0])  # kafka-python's errors put their class before the message


@contextmanager
def naming_refusals(
    address: ClusterAddress, tried: str, right: str, name: str | None = None
) -> Iterator[None]:
    """Raise RefusedError in place of an error of kafka-python about a right.

    tried: what the block does. right: what it needs. name: of the topic, group or transactional id; None if the error
    has it.
    """
    try:
        yield
    except RefusedError:
        raise
    except kafka_errors.AuthorizationError as error:
        kind = next((kind for cls, kind in _KINDS.items() if isinstance(error, cls)), None)
        place = "the cluster" if kind is None else f"{kind} {_names(error) if name is None else name}"
        raise RefusedError(
            f"{address}: {tried} was refused: this user needs the right {right} on {place}"
        ) from None


def _names(error: kafka_errors.AuthorizationError) -> str:
    found = error.args[0] if error.args else ""
    return ", ".join(sorted(found)) if isinstance(found, set | frozenset | list | tuple) else str(found)
