"""The base classes of the generated messages and of the structures in them."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from kafkafmt.schemas.decoder import decode
from kafkafmt.schemas.schema import MessageSchema

M = TypeVar("M", bound="Message")


class Struct:
    """A structure inside a message: a frozen dataclass, nested in the class of its message."""

    __slots__ = ()


class Message:
    """A message: a frozen dataclass that is made of its `SCHEMA`.

    `unknown_tagged_fields` of a message has the tagged fields that the schema does not know.
    """

    __slots__ = ()
    SCHEMA: ClassVar[MessageSchema]

    @classmethod
    def decode(cls: type[M], data: bytes, version: int, position: int = 0) -> M:
        """Decode a message that is alone in the bytes from `position` on.

        Fields that the version lacks have their defaults. Raises UnsupportedVersionError if `SCHEMA` lacks the
        version, InvalidRecordError if the bytes do not follow the schema of this version.

        >>> from kafkafmt.schemas.group_coordinator import OffsetCommitKey
        >>> OffsetCommitKey.decode(b"\\0\\1g" b"\\0\\1t" b"\\0\\0\\0\\7", version=0)
        OffsetCommitKey(group='g', topic='t', partition=7)
        """
        return decode(cls, data, version, position)
