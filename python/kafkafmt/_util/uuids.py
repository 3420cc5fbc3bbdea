"""Kafka's text of a UUID: its 16 bytes in URL-safe base64 without padding, as in `partition.metadata`."""

from __future__ import annotations

import base64
from uuid import UUID


def uuid_text(value: UUID) -> str:
    """Return Kafka's text of a UUID.

    >>> uuid_text(UUID(int=1))
    'AAAAAAAAAAAAAAAAAAAAAQ'
    """
    return base64.urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")


def parse_uuid(text: str) -> UUID:
    """Return the UUID of Kafka's text. Raises ValueError.

    >>> parse_uuid("AAAAAAAAAAAAAAAAAAAAAQ")
    UUID('00000000-0000-0000-0000-000000000001')
    """
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
