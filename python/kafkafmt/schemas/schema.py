"""The description of a message: its fields, their wire types, and the versions that have them.

A description has what Kafka's JSON schemas say about bytes ("Kafka Protocol Guide", and the README beside the schemas
in Kafka's `clients/src/main/resources/common/message`). It has no reference to classes: structures are found by name
in `MessageSchema.structs`. The decoder, the encoder and the conversion to JSON all derive from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

Scalar: TypeAlias = "bool | int | float | str | bytes | UUID | None"
WireType: TypeAlias = Literal[
    "bool",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float64",
    "uuid",
    "string",
    "bytes",
    "struct",
]
_ANY_LATER = 0x7FFF


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, `first` and `last` included. It is empty if `first` is greater than `last`.

    >>> 3 in Versions(2), 3 in Versions(0, 1), 3 in Versions(0, -1)
    (True, False, False)
    """

    first: int
    last: int = _ANY_LATER

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __str__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == _ANY_LATER:
            return f"{self.first} or later"
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"


NO_VERSIONS = Versions(0, -1)
ZERO_UUID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class TaggedField:
    """A tagged field whose tag the schema does not know: written by a newer Kafka, or by another program."""

    tag: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """One field of a message or of a structure.

    name: the Python attribute.
    json_name: the name in Kafka's JSON.
    type: the wire type; of an array, the wire type of its elements.
    versions: the versions of the message that have the field.
    array: whether the field is an array. Arrays contain no arrays, and their elements are never null.
    struct: the name of the structure if `type` is "struct".
    nullable: the versions in which the value, or the array, can be null.
    tagged: the versions in which the field is a tagged field; in its other versions it has a fixed place.
    tag: the tag if the field is tagged in any version.
    default: the value of a field that is absent: `()` for an empty array and for a structure of defaults.
    ignorable: whether an encoder may drop a value in a version that lacks the field.
    """

    name: str
    json_name: str
    type: WireType
    versions: Versions
    array: bool = False
    struct: str | None = None
    nullable: Versions = NO_VERSIONS
    tagged: Versions = NO_VERSIONS
    tag: int | None = None
    default: Scalar | tuple[()] = None
    ignorable: bool = False


@dataclass(frozen=True, slots=True)
class StructSchema:
    """A structure inside a message. Its versions are those of the message."""

    name: str
    fields: tuple[FieldSchema, ...]


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """A message.

    name: Kafka's name of the message.
    api_key: the number of the record type. None if the message has none.
    versions: the versions that the schema describes.
    flexible: the versions with compact lengths, and with tagged fields at the end of each structure (KIP-482).
    fields: in the order of the bytes. Tagged fields are also in this list, in the order of Kafka's schema.
    structs: the structures that the fields refer to. Each refers only to those before it.
    """

    name: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    fields: tuple[FieldSchema, ...]
    structs: tuple[StructSchema, ...] = ()

    def struct(self, name: str | None) -> StructSchema:
        """Return the structure of this name. Raises KeyError."""
        for struct in self.structs:
            if struct.name == name:
                return struct
        raise KeyError(name)
