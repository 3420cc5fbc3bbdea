"""Schemas of the topic `_schemas`, in which Confluent's registry keeps them: of a log, a backup or a cluster.

A record's key is the JSON object {"keytype": "SCHEMA", "subject": S, "version": N}, and its value has the id and the
schema. The last value of a key counts, as after compaction. A version that is marked as deleted is still found by its
id, since old records have it, but is never the newest. A null value removes a version for good.

The subjects of a context are named `:.CONTEXT:SUBJECT`. An id is unique within its context only, and payloads do not
name the context. So an id is that of the default context. If it has no such id, other contexts that have it must agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkafmt._util.names import some_names
from kafkafmt.decode.binary_rows import binary_rows
from kafkafmt.decode.payloads import GIVE_READER, Schema, SchemaError, SchemaKind
from kafkafmt.decode.schemas.source import (
    SchemaId,
    SchemaSourceError,
    UnknownSchemaError,
    ensure_kind,
    protobuf_content,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_REFERENCE_DEPTH = 20
_DEFAULT_CONTEXT = ""
_CONTEXT = re.compile(r":\.([^:]*):")


class _Version(NamedTuple):
    subject: str
    version: int
    schema_id: int
    guid: str | None
    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]
    deleted: bool

    @property
    def context(self) -> str:
        """The context of the subject."""
        named = _CONTEXT.match(self.subject)
        return _DEFAULT_CONTEXT if named is None else named[1]

    def qualified(self, subject: str) -> str:
        """Return the subject that this version calls `subject`: without a context, it is in that of the version."""
        if self.context == _DEFAULT_CONTEXT or _CONTEXT.match(subject):
            return subject
        return f":.{self.context}:{subject}"


class SchemasTopic:
    """Schemas by the ids of records of the topic `_schemas`. It keeps the schemas, not the source.

    source: anything with an Arrow stream of columns `key` and `value` in the order of offsets, such as
    `kafkafmt.scan(FOLDER, topics="_schemas")`.

    Raises SchemaSourceError if a record is damaged.
    """

    def __init__(self, source: Any) -> None:
        import pyarrow as pa

        self._subjects: dict[str, dict[int, _Version]] = {}
        self._read(pa.RecordBatchReader.from_stream(source))
        self._schemas: dict[tuple[str, int], Schema] = {}
        # By id or GUID, and by context.
        self._by_id: dict[int | str, dict[str, _Version]] = {}
        for found in (found for versions in self._subjects.values() for found in versions.values()):
            for key in (found.schema_id, found.guid):
                if key is not None:
                    self._by_id.setdefault(key, {})[found.context] = found

    def __repr__(self) -> str:
        return f"SchemasTopic({len(self._by_id)} schemas)"

    def schema(self, schema_id: SchemaId, kind: SchemaKind) -> Schema:
        """Return the schema with this id."""
        found = self._by_id.get(schema_id.value) if schema_id.kind in {"id", "guid"} else None
        if found is None:
            raise UnknownSchemaError(f"{schema_id} is unknown to the topic _schemas")
        if _DEFAULT_CONTEXT in found:
            return self._schema_of(found[_DEFAULT_CONTEXT], kind, 0)
        if len({(version.kind, version.text) for version in found.values()}) > 1:
            raise SchemaError(
                f"{schema_id} has different schemas in contexts {some_names(sorted(found))} of the topic _schemas"
            )
        return self._schema_of(next(iter(found.values())), kind, 0)

    def newest(self, subject: str, kind: SchemaKind) -> Schema | None:
        """Return the newest version of a subject that is not deleted. None if there is none."""
        known = [found for found in self._subjects.get(subject, {}).values() if not found.deleted]
        return self._schema_of(max(known, key=lambda found: found.version), kind, 0) if known else None

    def newest_after(self, schema_ids: Sequence[SchemaId], kind: SchemaKind) -> Schema:
        """Return the newest schema of the one subject that has all these ids."""
        wanted = {schema_id.value for schema_id in schema_ids}
        known = [
            subject
            for subject, versions in self._subjects.items()
            if wanted <= {key for found in versions.values() for key in (found.schema_id, found.guid)}
        ]
        if all(_DEFAULT_CONTEXT in self._by_id.get(value, ()) for value in wanted):
            known = [subject for subject in known if _CONTEXT.match(subject) is None]
        newest = self.newest(known[0], kind) if len(known) == 1 else None
        if newest is not None:
            return newest
        if len(schema_ids) == 1:
            return self.schema(schema_ids[0], kind)
        raise SchemaError(
            f"the records have schemas of several subjects of the topic _schemas: {GIVE_READER}"
        )

    def _read(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            keys, values = binary_rows(batch.column("key")), binary_rows(batch.column("value"))
            for row in range(len(keys)):
                try:
                    key = json.loads(keys.row(row)) if keys.present[row] else {}
                    value = json.loads(values.row(row)) if values.present[row] else None
                    self._apply(key, value)
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                    found = keys.row(row)[:80]
                    raise SchemaSourceError(
                        f"the topic _schemas has a damaged record with the key {found!r}: "
                        f"{type(error).__name__} {' '.join(str(error).split())}"
                    ) from None

    def _apply(self, key: Any, value: Any) -> None:
        """Apply one record: a version, the end of one, or the deletion of all versions of a subject."""
        kind = key.get("keytype")
        if kind == "SCHEMA":
            subject, version = str(key["subject"]), int(key["version"])
            versions = self._subjects.setdefault(subject, {})
            if value is None:
                versions.pop(version, None)
            else:
                versions[version] = _version(subject, version, value)
        elif kind == "DELETE_SUBJECT" and value is not None:
            last = int(value["version"])
            versions = self._subjects.get(str(value["subject"]), {})
            for version in [version for version in versions if version <= last]:
                versions[version] = versions[version]._replace(deleted=True)

    def _schema_of(self, found: _Version, kind: SchemaKind, depth: int) -> Schema:
        name = f"version {found.version} of subject {found.subject}"
        ensure_kind(found.kind, kind, name)
        known = self._schemas.get((found.subject, found.version))
        if known is not None:
            return known
        if depth > _MAX_REFERENCE_DEPTH:
            raise SchemaError(f"{name} has references nested deeper than {_MAX_REFERENCE_DEPTH}")
        references = []
        for reference, subject, version in found.references:
            other = self._subjects.get(found.qualified(subject), {}).get(version)
            if other is None:
                raise UnknownSchemaError(
                    f"{name} refers to version {version} of subject {subject}, which is missing"
                )
            references.append((reference, self._schema_of(other, kind, depth + 1)))
        content = protobuf_content(found.text) if kind == "PROTOBUF" else found.text
        schema = self._schemas[found.subject, found.version] = Schema(kind, content, tuple(references))
        return schema


def _version(subject: str, version: int, value: Any) -> _Version:
    references = tuple(
        (str(entry["name"]), str(entry["subject"]), int(entry["version"]))
        for entry in value.get("references") or ()
    )
    guid = value.get("guid")
    return _Version(
        subject,
        version,
        int(value["id"]),
        None if guid is None else str(guid).lower(),
        str(value.get("schemaType") or "AVRO"),
        str(value["schema"]),
        references,
        bool(value.get("deleted", False)),
    )
