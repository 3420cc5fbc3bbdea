"""Schemas of files: a folder whose files are named by ids, a map of ids to files, or one schema for all payloads.

A file is named by an id: a number, or a GUID or UUID. Its ending says its kind: `17.avsc` is Avro, `17.json` is a JSON
Schema, `17.proto` is the text of a Protobuf schema, `17.desc` is a Protobuf FileDescriptorSet, as
`protoc --include_imports --descriptor_set_out` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from kafkafmt.decode.formats import payload_format
from kafkafmt.decode.payloads import GIVE_READER, Schema, SchemaError, SchemaKind
from kafkafmt.decode.schemas.source import SchemaId, SchemaSourceError, UnknownSchemaError, ensure_kind

Key: TypeAlias = int | str

_KINDS: dict[str, SchemaKind] = {".avsc": "AVRO", ".desc": "PROTOBUF", ".json": "JSON", ".proto": "PROTOBUF"}


def read_schema(path: Path) -> Schema:
    """Return the schema of a file. Raises SchemaError if its ending is not known, and SchemaSourceError."""
    kind = _KINDS.get(path.suffix)
    try:
        if kind is None and path.exists():
            raise SchemaError(f"{path}: expected a file ending in {', '.join(_KINDS)}")
        content = path.read_bytes()
    except OSError as error:
        raise SchemaSourceError(f"{path}: {error.strerror or error}") from None
    assert kind is not None  # the file exists
    if path.suffix == ".desc":
        return Schema(kind, content)
    try:
        return Schema(kind, content.decode())
    except UnicodeDecodeError:
        raise SchemaError(f"{path}: expected UTF-8; found other bytes") from None


def read_valid_schema(path: Path) -> Schema:
    """Return the schema of a file, which is that of all payloads. Raises as `read_schema`, and if it is damaged."""
    schema = read_schema(path)
    try:
        payload_format(schema.kind).ensure_valid(schema)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from None
    return schema


class SchemaFiles:
    """Schemas by ids. files: the file, or the schema, of each id."""

    def __init__(self, files: Mapping[Key, str | Path | Schema], name: str = "the map of schemas") -> None:
        self._name = name
        self._schemas = {
            _key(key): found if isinstance(found, Schema) else read_schema(Path(found))
            for key, found in files.items()
        }

    @classmethod
    def folder(cls, path: Path) -> SchemaFiles:
        """Return the schemas of a folder. Files with other endings are left out."""
        try:
            files = sorted(found for found in path.iterdir() if found.suffix in _KINDS)
        except OSError as error:
            raise SchemaSourceError(f"{path}: {error.strerror or error}") from None
        keys: dict[Key, str | Path | Schema] = {}
        for file in files:
            if _key(file.stem) in keys:
                raise SchemaError(f"{path}: two files have the schema of id {file.stem}")
            keys[_key(file.stem)] = file
        return cls(keys, str(path))

    def __repr__(self) -> str:
        return f"SchemaFiles({len(self._schemas)} schemas of {self._name})"

    def schema(self, schema_id: SchemaId, kind: SchemaKind) -> Schema:
        """Return the schema with this id, of whatever kind the id is."""
        found = self._schemas.get(_key(schema_id.value))
        if found is None:
            raise UnknownSchemaError(f"{schema_id} is unknown to {self._name}")
        ensure_kind(found.kind, kind, schema_id)
        return found

    def of_kind(self, kind: SchemaKind) -> list[Schema]:
        """Return all schemas of a kind."""
        return [found for found in self._schemas.values() if found.kind == kind]

    def newest(self, subject: str, kind: SchemaKind) -> Schema | None:
        """Return None: files have no subjects."""
        return None

    def newest_after(self, schema_ids: Sequence[SchemaId], kind: SchemaKind) -> Schema:
        """Return the schema with the highest of these ids; registries count them up."""
        numbers = [schema_id for schema_id in schema_ids if isinstance(schema_id.value, int)]
        if numbers:
            return self.schema(max(numbers, key=lambda schema_id: int(schema_id.value)), kind)
        if len(schema_ids) == 1:
            return self.schema(schema_ids[0], kind)
        raise SchemaError(
            f"{self._name} does not tell which of {len(schema_ids)} schemas is the newest: {GIVE_READER}"
        )


def _key(key: Key) -> Key:
    """Return ids as numbers, if they are, and others in lower case."""
    text = str(key)
    return int(text) if text.isdecimal() else text.lower()
