"""JSON Schema: the Arrow type of a schema.

| schema | Arrow |
|---|---|
| object with properties | struct; properties that it does not name are left out |
| object without | map<string, type of additionalProperties>, or map<string, string> with JSON text |
| array | list of the type of items |
| string; its formats date-time, date | string; timestamp[us, UTC], date32 |
| integer, number, boolean | int64, double, bool |
| enum or const of strings | string |
| a type or null, by a list of types, oneOf or anyOf | the type |
| allOf of objects | struct with all properties |
| anything else, such as oneOf several types, and what refers to itself | string with JSON text |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa

from kafkafmt.decode.fields import lacking_fields
from kafkafmt.decode.payloads import Schema, SchemaError
from kafkafmt.decode.schema_text import document_of

_MAX_DEPTH = 64
_MAX_SCHEMAS = 20_000  # definitions that refer to each other multiply
_MAX_OPEN_REFS = 1000  # each is compared with those before it
_TEXT = pa.string()
_SCALARS = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()}
_STRINGS = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}


class _Place(NamedTuple):
    """Where a schema stands.

    document, references: where its `$ref` is found. path: of its field. visited: counts the fields and the schemas that
    they refer to. documents: of the references that were read; a reference is known by the identity of its document.
    anchors: the schemas with names, by the identity of their document. open_refs: the references on the way to it.
    """

    document: Any
    references: Mapping[str, Schema]
    path: tuple[str, ...]
    visited: count[int]
    documents: dict[Schema, Any]
    anchors: dict[int, dict[str, Any]]
    open_refs: tuple[tuple[int, str], ...] = ()

    def inner(self, name: str) -> _Place:
        return self._replace(path=(*self.path, name))


class JsonSchemaFormat:
    """Reads JSON Schemas. `JsonDecoder` decodes payloads to their types, without the schema of the writer."""

    def ensure_valid(self, schema: Schema) -> None:
        """Raise SchemaError if a schema is no JSON object."""
        _parsed(schema)

    def read_type(self, reader: Schema) -> pa.DataType:
        """Return the Arrow type of a JSON Schema."""
        return _arrow_type(reader)[0]

    def left_out(self, writer: Schema, reader: Schema) -> Sequence[str]:
        """Return the paths of the properties of `writer` that `reader` lacks."""
        return list(lacking_fields(self.read_type(writer), self.read_type(reader)))


FORMAT = JsonSchemaFormat()


def text_fields_of(reader: Schema) -> frozenset[tuple[str, ...]]:
    """Return the paths of the fields whose type is text because they may have any JSON."""
    return _arrow_type(reader)[1]


@lru_cache(maxsize=256)
def _arrow_type(schema: Schema) -> tuple[pa.DataType, frozenset[tuple[str, ...]]]:
    """Return the type of a schema, and the paths of the fields that have JSON text."""
    document = _parsed(schema)
    text_fields: set[tuple[str, ...]] = set()
    place = _Place(document, dict(schema.references), (), count(), {schema: document}, {})
    try:
        kind = _type_of(document, place, text_fields)
    except RecursionError:
        raise SchemaError("the JSON Schema is nested too deeply") from None
    return kind, frozenset(text_fields)


def _parsed(schema: Schema) -> Any:
    document = document_of(schema, "a JSON Schema")
    if not isinstance(document, dict | bool):
        raise SchemaError(f"expected a JSON Schema as an object; found {type(document).__name__}")
    return document


def _type_of(schema: Any, place: _Place, text_fields: set[tuple[str, ...]]) -> pa.DataType:
    """Return the type of a schema; the paths of its JSON texts are added to `text_fields`."""
    _count(place)
    if len(place.path) > _MAX_DEPTH:
        raise SchemaError(f"the JSON Schema is nested deeper than {_MAX_DEPTH} levels")
    found = _resolved(schema, place)
    if found is None:
        return _any(place, text_fields)
    schema, place = found
    kinds = [kind for kind in _types(schema) if kind != "null"]
    if kinds == ["object"]:
        return _object(schema, place, text_fields)
    if kinds == ["array"]:
        items = schema.get("items")
        if "prefixItems" in schema or isinstance(items, list):
            return _any(place, text_fields)
        return pa.list_(_type_of(True if items is None else items, place.inner("[]"), text_fields))
    if kinds == ["string"]:
        return _STRINGS.get(str(schema.get("format")), _TEXT)
    if kinds and set(kinds) <= {"integer", "number"}:
        return _SCALARS["number" if "number" in kinds else "integer"]
    if kinds == ["boolean"]:
        return _SCALARS["boolean"]
    return _any(place, text_fields)


def _count(place: _Place) -> None:
    if next(place.visited) > _MAX_SCHEMAS:
        raise SchemaError(f"the JSON Schema has more than {_MAX_SCHEMAS} fields and references")


def _any(place: _Place, text_fields: set[tuple[str, ...]]) -> pa.DataType:
    text_fields.add(place.path)
    return _TEXT


def _object(schema: Mapping[str, Any], place: _Place, text_fields: set[tuple[str, ...]]) -> pa.DataType:
    properties = schema.get("properties")
    if isinstance(properties, dict) and properties:
        names = [
            (name, _type_of(inner, place.inner(name), text_fields)) for name, inner in properties.items()
        ]
        return pa.struct([pa.field(name, kind) for name, kind in names])
    values = schema.get("additionalProperties", True)
    return pa.map_(pa.string(), _type_of(values, place.inner("{}"), text_fields))


def _types(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of the types that a schema allows. Empty if it does not say so."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [str(name) for name in kind]
    if "properties" in schema:
        return ["object"]
    if "items" in schema:
        return ["array"]
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if (
        isinstance(values, list)
        and values
        and all(value is None or isinstance(value, str) for value in values)
    ):
        return ["string"]
    return []


def _resolved(schema: Any, place: _Place) -> tuple[Mapping[str, Any], _Place] | None:
    """Return a schema that is no reference or choice. None if it allows values of several types."""
    while isinstance(schema, dict):
        _count(place)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            mark = (id(place.document), reference)
            if mark in place.open_refs:
                return None  # it refers to itself
            if len(place.open_refs) == _MAX_OPEN_REFS:
                raise SchemaError(f"the JSON Schema has more than {_MAX_OPEN_REFS} references in a chain")
            schema, place = _referred(reference, place)
            place = place._replace(open_refs=(*place.open_refs, mark))
            continue
        choices = schema.get("oneOf", schema.get("anyOf"))
        if isinstance(choices, list) and "type" not in schema:
            kept = [choice for choice in choices if not _is_null(choice)]
            if len(kept) != 1:
                return None
            schema = kept[0]
            continue
        parts = schema.get("allOf")
        if isinstance(parts, list):
            return _merged(schema, parts, place)
        return schema, place
    return None


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _merged(
    schema: Mapping[str, Any], parts: list[Any], place: _Place
) -> tuple[Mapping[str, Any], _Place] | None:
    """Return one schema of objects for `allOf`. Parts of other documents, and damaged ones, are not merged."""
    own = schema.get("properties", {})
    if not isinstance(own, dict):
        return None
    properties = dict(own)
    found = list(_resolved_parts(parts, place))
    if len(found) == 1 and found[0] is not None and not properties:
        return found[0]
    for part in found:
        if part is None or _types(part[0]) != ["object"] or part[1].document is not place.document:
            return None
        others = part[0].get("properties", {})
        if not isinstance(others, dict):
            return None
        for name, inner in others.items():
            properties.setdefault(name, inner)
    return {"type": "object", "properties": properties}, place


def _resolved_parts(parts: list[Any], place: _Place) -> Iterator[tuple[Mapping[str, Any], _Place] | None]:
    yield from (_resolved(part, place) for part in parts)


def _referred(reference: str, place: _Place) -> tuple[Any, _Place]:
    """Return the schema that a `$ref` names. Raises SchemaError if there is none."""
    name, _, pointer = reference.partition("#")
    if name:
        other = place.references.get(name)
        if other is None:
            raise SchemaError(f"$ref {reference}: no reference of the schema has this name")
        if other not in place.documents:
            place.documents[other] = _parsed(other)
        place = place._replace(document=place.documents[other], references=dict(other.references))
    if pointer and not pointer.startswith("/"):
        if id(place.document) not in place.anchors:
            place.anchors[id(place.document)] = _anchors_of(place.document)
        anchors = place.anchors[id(place.document)]
        if pointer not in anchors:
            raise SchemaError(f"$ref {reference}: the schema has no anchor {pointer}")
        return anchors[pointer], place
    found = place.document
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and _is_index(key, found):
            found = found[int(key)]
        else:
            raise SchemaError(f"$ref {reference}: the schema has no {key}")
    return found, place


def _is_index(key: str, items: list[Any]) -> bool:
    """Return whether a part of a JSON pointer is an index of a list. It may have thousands of digits."""
    return key.isdecimal() and len(key) <= len(str(len(items))) and int(key) < len(items)


def _anchors_of(document: Any) -> dict[str, Any]:
    """Return the schemas of a document by the names that they have for `$ref`: `$anchor`, or `$id` with a #."""
    anchors: dict[str, Any] = {}
    waiting = [document]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            for key, prefix in (("$anchor", ""), ("$id", "#"), ("id", "#")):
                name = found.get(key)
                if isinstance(name, str) and name.startswith(prefix):
                    anchors.setdefault(name.removeprefix(prefix), found)
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)
    return anchors
