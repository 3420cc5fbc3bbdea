"""The payloads of keys or values with one schema, what a format decodes them to, and the interface of a format.

Records are grouped by the schema that wrote them. For each group, a `WrittenFormat` makes a `PayloadDecoder` of the
schema of the writer and the schema of the reader, and the decoder decodes the payloads of the group in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from kafkafmt._util.user_errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

Message: TypeAlias = "tuple[int, ...] | str | int"
SchemaKind: TypeAlias = Literal["AVRO", "JSON", "PROTOBUF"]  # as schema registries name them

# What to do if nothing tells one type for all records. The options are those of commands.
GIVE_SCHEMA = "give one schema (--schemas FILE, or reader_schema in Python)"
GIVE_READER = (
    "give a reader schema (--reader-schema FILE of kafkafmt export, or reader_schema in Python); kafkafmt replay shows "
    "each record by its own schema"
)


class SchemaError(UserError, ValueError):
    """A schema is damaged, is missing, is not supported, or cannot be read by the schema of the reader."""


class UndeterminedTypeError(SchemaError):
    """The type of keys or values is that of the records, and none has any yet. Those without are tombstones."""


@dataclass(frozen=True)
class Schema:
    """A schema of payloads. It is hashable, and can be pickled.

    kind: the language of the schema.
    content: the text of the schema. For Protobuf, also a serialized FileDescriptorSet whose last file is the schema.
    references: the schemas that this one refers to, by the name with which it does: the full name of an Avro type, the
        path of a Protobuf import, the `$ref` of a JSON Schema. They have references themselves.
    message: the Protobuf message of the payloads: its full name, or its index in the file, the index of the message
        nested in that, and so on, as Confluent's framing has them, or its index among all messages of the file in the
        order of their full names, as AWS Glue's framing has it. Other kinds leave the default.
    """

    kind: SchemaKind
    content: str | bytes
    # Schemas that share references are a graph: a hash of all paths in it may never end.
    references: tuple[tuple[str, Schema], ...] = field(default=(), hash=False)
    message: Message = (0,)

    def __eq__(self, other: object) -> bool:
        """Compare each pair of schemas once, however many paths in their graphs lead to it."""
        if not isinstance(other, Schema):
            return NotImplemented
        seen: set[tuple[int, int]] = set()
        waiting = [(self, other)]
        while waiting:
            one, two = waiting.pop()
            if one is two or (id(one), id(two)) in seen:
                continue
            seen.add((id(one), id(two)))
            if (one.kind, one.content, one.message) != (two.kind, two.content, two.message):
                return False
            if [name for name, _ in one.references] != [name for name, _ in two.references]:
                return False
            waiting += zip(
                (found for _, found in one.references), (found for _, found in two.references), strict=True
            )
        return True


class Payloads(NamedTuple):
    """Payloads without their framing: payload i is data[starts[i]:ends[i]].

    data: uint8. starts, ends: int64.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size_in_bytes(self) -> int:
        """The sum of the lengths of all payloads."""
        return int((self.ends - self.starts).sum())


class DecodedPayloads(NamedTuple):
    """A value for each of some payloads, in their order.

    array: null for a payload that could not be decoded. errors: what is wrong with these payloads, by index: one line
    with the position in the payload.
    """

    array: pa.Array
    errors: Mapping[int, str]


class PayloadDecoder(Protocol):
    """Decodes payloads that one schema wrote to the type of the reader."""

    @property
    def type(self) -> pa.DataType: ...

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        """Decode payloads. A payload that is damaged becomes an error, and never raises."""
        ...


class PayloadFormat(Protocol):
    """A format whose payloads have schemas. It has no state: one object serves all schemas."""

    def ensure_valid(self, schema: Schema) -> None:
        """Raise SchemaError if a schema is damaged."""
        ...

    def read_type(self, reader: Schema) -> pa.DataType:
        """Return the type of the values that payloads decode to with `reader` as the schema of the reader.

        Raises SchemaError if the schema is damaged or not supported.
        """
        ...

    def left_out(self, writer: Schema, reader: Schema) -> Sequence[str]:
        """Return the paths of the fields of `writer` that `reader` lacks.

        Raises SchemaError if a schema is damaged or not supported, or if `reader` cannot read what `writer` writes.
        """
        ...


@runtime_checkable
class WrittenFormat(Protocol):
    """What a `PayloadFormat` has, too, if its payloads need the schema of their writer. JSON does not."""

    def decoder(self, writer: Schema, reader: Schema) -> PayloadDecoder:
        """Return a decoder of the payloads of `writer` whose type is `read_type(reader)`.

        Raises SchemaError as `left_out`.
        """
        ...
