"""The base classes of the generated messages and of the structures in them."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from kafkafmt.schemas.decoder import decode
from kafkafmt.schemas.encoder import encode
from kafkafmt.schemas.json_form import message_json
from kafkafmt.schemas.schema import MessageSchema
from kafkafmt.types import check_int

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
        version, InvalidRecordError if the bytes do not follow the schema of this version, and ValueError for a position
        outside `data`.

        >>> from kafkafmt.schemas.group_coordinator import OffsetCommitKey
        >>> OffsetCommitKey.decode(b"\\0\\1g" b"\\0\\1t" b"\\0\\0\\0\\7", version=0)
        OffsetCommitKey(group='g', topic='t', partition=7)
        """
        check_int("position", position, 0, len(data))
        return decode(cls, data, version, position)

    def encode(self, version: int) -> bytes:
        """Encode the message as Kafka does. Raises ValueError if the version cannot carry the values.

        Fields that the version lacks must have their defaults, except those that Kafka's schema lets an encoder drop.

        >>> from kafkafmt.schemas.transaction_coordinator import TransactionLogKey
        >>> TransactionLogKey("payments").encode(version=0)
        b'\\x00\\x08payments'
        """
        return encode(self, version)

    def to_json(self, version: int) -> dict[str, Any]:
        """Return the fields of a version as Kafka's tools print them: `json.dumps` takes the result.

        Names are Kafka's. Bytes are base64, UUIDs URL-safe base64 without padding. Tagged fields that have their
        default are left out. So are unknown tagged fields, and fields that the version lacks.

        Raises ValueError if `SCHEMA` lacks the version.

        >>> from kafkafmt.schemas.transaction_coordinator import TransactionLogKey
        >>> TransactionLogKey("payments").to_json(version=0)
        {'transactionalId': 'payments'}
        """
        return message_json(self, self.SCHEMA, version)
