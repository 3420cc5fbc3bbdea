"""Avro schemas: their types, and the parser of their JSON (Avro 1.12, "Schema Declaration").

Logical types that are not known, or do not fit to their type, are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kafkafmt.decode.payloads import Schema, SchemaError
from kafkafmt.decode.schema_text import document_of

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
MAX_DEPTH = 100  # of a schema
MISSING: Any = object()  # the default of a field that has none

_LOGICAL_TYPES = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
}
_MAX_PRECISION = 76  # of Arrow's decimals
_UUID_BYTES = 16
_DURATION_BYTES = 12


@dataclass(frozen=True)
class Logical:
    """A logical type. precision, scale: of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Primitive:
    """A type without parts. kind: one of PRIMITIVES."""

    kind: str
    logical: Logical | None = None


@dataclass(eq=False)
class Field:
    """A field of a record. default: as JSON, or MISSING."""

    name: str
    type: AvroType
    aliases: frozenset[str]
    default: Any


@dataclass(eq=False)
class Record:
    """name, aliases: with namespaces. takes_no_bytes: known when all fields are."""

    name: str
    aliases: frozenset[str]
    fields: list[Field] = field(default_factory=list)
    takes_no_bytes: bool = False
    kind = "record"


@dataclass(eq=False)
class Enum:
    name: str
    aliases: frozenset[str]
    symbols: list[str]
    default: str | None
    kind = "enum"


@dataclass(eq=False)
class Fixed:
    name: str
    aliases: frozenset[str]
    size: int
    logical: Logical | None
    kind = "fixed"


@dataclass(eq=False)
class Array:
    items: AvroType
    kind = "array"


@dataclass(eq=False)
class Map:
    values: AvroType
    kind = "map"


@dataclass(eq=False)
class Union:
    branches: list[AvroType]
    kind = "union"


AvroType: TypeAlias = "Primitive | Record | Enum | Fixed | Array | Map | Union"
Named: TypeAlias = "Record | Enum | Fixed"


def parse(schema: Schema) -> AvroType:
    """Return the type of a schema. Raises SchemaError if it is damaged."""
    return _Parser().parsed(schema)


def children(kind: AvroType) -> Iterator[AvroType]:
    """Yield the types of which a type consists."""
    if isinstance(kind, Record):
        yield from (part.type for part in kind.fields)
    elif isinstance(kind, Array):
        yield kind.items
    elif isinstance(kind, Map):
        yield kind.values
    elif isinstance(kind, Union):
        yield from kind.branches


def takes_no_bytes(kind: AvroType) -> bool:
    """Return whether values of a type take no bytes."""
    if isinstance(kind, Record):
        return kind.takes_no_bytes
    return kind.kind == "null" or (isinstance(kind, Fixed) and kind.size == 0)


class _Parser:
    """Parses a schema and those that it refers to, which share their names."""

    def __init__(self) -> None:
        self._names: dict[str, Named] = {}
        self._references: set[int] = set()  # their identities
        self._depth = 0

    def parsed(self, schema: Schema) -> AvroType:
        for name, reference in schema.references:
            # Two references may have one in common, and under names that it does not define.
            if name not in self._names and id(reference) not in self._references:
                self._references.add(id(reference))
                self.parsed(reference)
        return self._type(document_of(schema, "an Avro schema"), "")

    def _type(self, found: Any, namespace: str) -> AvroType:
        if self._depth == MAX_DEPTH:
            raise SchemaError(f"the Avro schema is nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        try:
            if isinstance(found, str):
                return self._named(found, namespace)
            if isinstance(found, list):
                return self._union(found, namespace)
            if isinstance(found, dict):
                return self._complex(found, namespace)
        finally:
            self._depth -= 1
        raise SchemaError(f"expected an Avro type; found {shown(found)}")

    def _named(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return Primitive(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._names.get(full) or self._names.get(name)
        if found is None:
            raise SchemaError(f"the Avro schema refers to the type {full}, which it does not define")
        return found

    def _union(self, found: list[Any], namespace: str) -> Union:
        branches = [self._type(branch, namespace) for branch in found]
        if any(isinstance(branch, Union) for branch in branches):
            raise SchemaError("an Avro union has a union as a branch")
        names: set[str] = set()
        for branch in branches:
            name = _branch_name(branch)
            if name in names:
                raise SchemaError(f"an Avro union has the branch {name} twice")
            names.add(name)
        return Union(branches)

    def _complex(self, found: dict[str, Any], namespace: str) -> AvroType:
        kind = found.get("type")
        if kind in ("record", "error"):
            return self._record(found, namespace)
        if kind == "enum":
            return self._enum(found, namespace)
        if kind == "fixed":
            return self._fixed(found, namespace)
        if kind == "array":
            return Array(self._type(_part(found, "items"), namespace))
        if kind == "map":
            return Map(self._type(_part(found, "values"), namespace))
        if isinstance(kind, str) and kind in PRIMITIVES:
            return Primitive(kind, _logical(found, kind, None))
        if kind is None:
            raise SchemaError(f"expected an Avro type; found {shown(found)}")
        return self._type(kind, namespace)

    def _record(self, found: dict[str, Any], namespace: str) -> Record:
        record = Record(*_names(found, namespace))
        self._define(record)
        fields = _part(found, "fields")
        if not isinstance(fields, list):
            raise SchemaError(f"record {record.name}: expected a list of fields; found {shown(fields)}")
        inner = record.name.rpartition(".")[0]
        known: set[str] = set()
        for part in fields:
            if not isinstance(part, dict) or not isinstance(part.get("name"), str) or "type" not in part:
                raise SchemaError(
                    f"record {record.name}: expected a field with a name and a type; found {shown(part)}"
                )
            name = part["name"]
            if name in known:
                raise SchemaError(f"record {record.name} has the field {name} twice")
            known.add(name)
            kind = self._type(part["type"], inner)
            record.fields.append(Field(name, kind, frozenset(_texts(part, "aliases")), _default(part)))
        record.takes_no_bytes = all(takes_no_bytes(part.type) for part in record.fields)
        return record

    def _enum(self, found: dict[str, Any], namespace: str) -> Enum:
        name, aliases = _names(found, namespace)
        symbols = _texts(found, "symbols")
        default = found.get("default")
        if not symbols or len(set(symbols)) < len(symbols):
            raise SchemaError(f"enum {name}: expected one or more symbols, each once")
        if default is not None and default not in symbols:
            raise SchemaError(f"enum {name}: its default {shown(default)} is none of its symbols")
        kind = Enum(name, aliases, symbols, default)
        self._define(kind)
        return kind

    def _fixed(self, found: dict[str, Any], namespace: str) -> Fixed:
        name, aliases = _names(found, namespace)
        size = found.get("size")
        if not isinstance(size, int) or not 0 <= size < 1 << 30:
            raise SchemaError(f"fixed {name}: expected a size in bytes; found {shown(size)}")
        kind = Fixed(name, aliases, size, _logical(found, "fixed", size))
        self._define(kind)
        return kind

    def _define(self, kind: Named) -> None:
        if kind.name in self._names:
            raise SchemaError(f"the Avro schema defines the type {kind.name} twice")
        self._names[kind.name] = kind


def _branch_name(branch: AvroType) -> str:
    return branch.name if isinstance(branch, Record | Enum | Fixed) else branch.kind


def _part(found: dict[str, Any], name: str) -> Any:
    if name not in found:
        raise SchemaError(f"expected an Avro {found['type']} with {name}; found {shown(found)}")
    return found[name]


def _default(found: dict[str, Any]) -> Any:
    return found.get("default", MISSING)


def _texts(found: dict[str, Any], name: str) -> list[str]:
    texts = found.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SchemaError(f"expected {name} as a list of names; found {shown(texts)}")
    return texts


def _names(found: dict[str, Any], namespace: str) -> tuple[str, frozenset[str]]:
    """Return the full name and the full aliases of a type."""
    name = found.get("name")
    if not isinstance(name, str) or not name.strip("."):
        raise SchemaError(f"expected the name of an Avro {found['type']}; found {shown(name)}")
    given = found.get("namespace", namespace)
    if "." not in name and isinstance(given, str) and given:
        name = f"{given}.{name}"
    name = name.removeprefix(".")
    space = name.rpartition(".")[0]
    aliases = _texts(found, "aliases")
    return name, frozenset(alias if "." in alias or not space else f"{space}.{alias}" for alias in aliases)


def _logical(found: dict[str, Any], kind: str, size: int | None) -> Logical | None:
    """Return the logical type, or None if there is none that is known and fits."""
    name = found.get("logicalType")
    if not isinstance(name, str):
        return None
    if _LOGICAL_TYPES.get(name) == kind:
        return Logical(name)
    if name == "uuid" and (kind == "string" or size == _UUID_BYTES):
        return Logical(name)
    if name == "duration" and size == _DURATION_BYTES:
        return Logical(name)
    if name == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(found, size)
    return None


def _decimal(found: dict[str, Any], size: int | None) -> Logical | None:
    precision, scale = found.get("precision"), found.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if not 0 < precision <= _MAX_PRECISION or not 0 <= scale <= precision:
        return None
    if size is not None and 10**precision - 1 > (1 << max(8 * size - 1, 0)) - 1:
        return None  # so many digits do not fit
    return Logical("decimal", precision, scale)


def shown(found: Any) -> str:
    """Return the beginning of a part of a schema, for messages."""
    text = json.dumps(found)
    return text if len(text) <= 60 else f"{text[:57]}..."
