"""The interface of sources of schemas, the ids with which payloads name schemas, and the errors of sources."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from kafkafmt._util.user_errors import UserError
from kafkafmt.decode.payloads import Schema, SchemaError, SchemaKind

# id: Confluent's numbers. guid: Confluent's GUIDs. globalId, contentId: Apicurio's numbers. glue: AWS Glue's UUIDs.
IdKind: TypeAlias = Literal["id", "guid", "globalId", "contentId", "glue"]
_LENGTH_DELIMITED_FIRST_FIELD = b"\x0a"


class SchemaId(NamedTuple):
    """The id of a schema in a payload or in a header. GUIDs and UUIDs are lower-case text with hyphens."""

    kind: IdKind
    value: int | str

    def __str__(self) -> str:
        return f"schema {self.kind} {self.value}"


class SchemaSourceError(UserError, OSError):
    """A source of schemas does not answer, refuses the request, or has an answer that is damaged."""


class UnknownSchemaError(SchemaError):
    """A source does not have a schema with this id."""


class SchemaSource(Protocol):
    """Finds schemas. Sources can be pickled, and threads can share them."""

    def schema(self, schema_id: SchemaId, kind: SchemaKind) -> Schema:
        """Return the schema with this id.

        Raises UnknownSchemaError if there is none, SchemaError if it is not of this kind or is damaged, and
        SchemaSourceError if the source cannot be asked.
        """
        ...

    def newest(self, subject: str, kind: SchemaKind) -> Schema | None:
        """Return the newest schema of a subject, such as `orders-value`. Returns None if the subject is not known.

        Raises SchemaError and SchemaSourceError as `schema` does.
        """
        ...

    def newest_after(self, schema_ids: Sequence[SchemaId], kind: SchemaKind) -> Schema:
        """Return the newest schema of the subjects that these schemas belong to. At least one id is given.

        Raises SchemaError if they are of several subjects, and as `schema` does.
        """
        ...


def ensure_kind(found: str, wanted: SchemaKind, name: object) -> None:
    """Raise SchemaError if a schema is of another kind."""
    if found != wanted:
        raise SchemaError(f"{name} is of type {found}; expected {wanted}")


def protobuf_content(text: str) -> str | bytes:
    """Return the FileDescriptorSet of a FileDescriptorProto in Base64, which registries have in place of text.

    The text of a .proto file is never Base64, since it has braces or semicolons. It is returned as it is.
    """
    try:
        proto = base64.b64decode(text, validate=True)
    except ValueError:
        return text
    size, length = bytearray(), len(proto)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return _LENGTH_DELIMITED_FIRST_FIELD + bytes(size) + proto
