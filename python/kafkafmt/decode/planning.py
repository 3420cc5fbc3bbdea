"""Find the types that keys and values are decoded to, and make the decoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from kafkafmt._util.sizes import MIB
from kafkafmt._util.user_errors import ArgumentError
from kafkafmt.decode.batch_decoder import BatchDecoder, ColumnDecoder, frames_of
from kafkafmt.decode.formats import payload_format
from kafkafmt.decode.framing import ID_HEADERS
from kafkafmt.decode.json_inference import infer_json_type
from kafkafmt.decode.options import (
    MAX_SAMPLE_ROWS,
    SCHEMA_KINDS,
    DecodingOptions,
    ReaderSchema,
    Sample,
    Schemas,
    Side,
)
from kafkafmt.decode.payloads import (
    GIVE_READER,
    GIVE_SCHEMA,
    Payloads,
    Schema,
    SchemaError,
    UndeterminedTypeError,
)
from kafkafmt.decode.primitives import primitive_decoder
from kafkafmt.decode.schemas.files import SchemaFiles, read_valid_schema
from kafkafmt.decode.schemas.registry import SchemaRegistry
from kafkafmt.decode.schemas.source import SchemaId, SchemaSource
from kafkafmt.decode.schemas.topic import SchemasTopic

if TYPE_CHECKING:
    from kafkafmt.decode.framing import Framing

_MAX_SAMPLE_BYTES = 32 * MIB


def plan_decoder(
    decoding: DecodingOptions,
    columns: Sequence[str],
    topics: Sequence[str],
    sample: Sample | None,
    known: pa.Schema | None,
) -> BatchDecoder:
    """Return the decoder of `Decoding.decoder`."""
    schemas = None if decoding.schemas is None else schema_source(decoding.schemas)
    sides = [side for side in decoding.sides() if side in columns]
    if not sides:
        raise ArgumentError(f"{' and '.join(decoding.sides())} are decoded, but are not among the columns")
    decoders = {
        side: _Planner(decoding, side, schemas, topics, sample, _record_type(known, side)).decoder()
        for side in sides
    }
    return BatchDecoder(columns, decoders, decoding.on_error)


def _record_type(known: pa.Schema | None, side: Side) -> pa.DataType | None:
    """Return the type of earlier keys or values if they are records: types of JSON are inferred for objects only."""
    kind = known.field(side).type if known is not None and side in known.names else None
    return kind if kind is not None and pa.types.is_struct(kind) else None


def schema_source(schemas: Schemas) -> SchemaSource | Schema:
    """Return where schemas come from. Raises ArgumentError if the value does not say so."""
    if isinstance(schemas, Schema):
        return schemas
    if isinstance(schemas, Mapping):
        return SchemaFiles(schemas)
    if isinstance(schemas, str | Path):
        if str(schemas).startswith(("http://", "https://")):
            return SchemaRegistry(str(schemas))
        path = Path(schemas)
        return SchemaFiles.folder(path) if path.is_dir() else read_valid_schema(path)
    if hasattr(schemas, "newest_after"):
        return cast(SchemaSource, schemas)
    if hasattr(schemas, "__arrow_c_stream__"):
        return SchemasTopic(schemas)
    raise ArgumentError(
        "schemas are a URL, a folder, a file, a map, a SchemaSource or a scan of _schemas; "
        f"found {type(schemas).__name__}"
    )


@dataclass
class _Planner:
    """Finds the type of keys or of values.

    known: that of earlier ones, if they were records. payloads: how many were read to find it.
    """

    decoding: DecodingOptions
    side: Side
    schemas: SchemaSource | Schema | None
    topics: Sequence[str]
    sample: Sample | None
    known: pa.DataType | None
    payloads: int = 0

    def decoder(self) -> ColumnDecoder:
        name = self.decoding.format_of(self.side)
        assert name is not None
        if name not in SCHEMA_KINDS:
            return self._column_decoder(primitive_decoder(name).type)
        given = self.decoding.reader_schema_of(self.side)
        if self.decoding.infers(self.side):
            return self._column_decoder(self._inferred(), strict=True)
        if given is not None:
            return self._reader_given(given)
        return self._with_reader(self._newest())

    def _column_decoder(
        self, kind: pa.DataType, *, reader: Schema | None = None, strict: bool = False
    ) -> ColumnDecoder:
        name, framing = self.decoding.format_of(self.side), self.decoding.framing_of(self.side)
        assert name is not None
        return ColumnDecoder(self.side, name, framing, self.schemas, kind, reader, strict)

    def _with_reader(self, reader: Schema) -> ColumnDecoder:
        return self._column_decoder(payload_format(reader.kind).read_type(reader), reader=reader)

    def _reader_given(self, given: ReaderSchema) -> ColumnDecoder:
        name = cast(str, self.decoding.format_of(self.side))
        kind = SCHEMA_KINDS[name]
        if isinstance(given, pa.Schema):
            return self._column_decoder(pa.struct(list(given)))
        if isinstance(given, pa.DataType):
            return self._column_decoder(given)
        if isinstance(given, str | bytes):
            given = Schema(kind, given)
        if not isinstance(given, Schema):
            raise ArgumentError(f"reader_schema is a schema or an Arrow type; found {type(given).__name__}")
        if given.kind != kind:
            raise ArgumentError(f"reader_schema is of kind {given.kind}; the format is {name}")
        return self._with_reader(given)

    def _newest(self) -> Schema:
        """Return the newest schema of the topics, or else of the first records."""
        if isinstance(self.schemas, Schema):
            return self.schemas
        assert self.schemas is not None
        kind = SCHEMA_KINDS[cast(str, self.decoding.format_of(self.side))]
        found = {topic: self.schemas.newest(f"{topic}-{self.side}", kind) for topic in self.topics}
        known = {schema for schema in found.values() if schema is not None}
        if len(known) > 1:
            names = ", ".join(sorted(topic for topic, schema in found.items() if schema is not None))
            raise SchemaError(f"topics {names} have different schemas of {self.side}s: {GIVE_READER}")
        if known and kind != "PROTOBUF":
            return known.pop()
        ids: dict[SchemaId, None] = {}
        messages: dict[Any, None] = {}
        for column, headers in self._samples():
            frames = frames_of(column, headers, self.side, self._framing(), self._format())
            ids.update((w.schema_id, None) for w in frames.writers if w.schema_id is not None)
            messages.update((w.message, None) for w in frames.writers if w.message is not None)
            if ids:
                break
        if len(messages) > 1:
            raise SchemaError(f"the {self.side}s are of {len(messages)} Protobuf messages: {GIVE_READER}")
        if not known and not ids:
            raise self._undetermined(
                f"no schema of {self.side}s is found by topic, and no record has the id of one: {GIVE_SCHEMA}"
            )
        schema = known.pop() if known else self.schemas.newest_after(list(ids), kind)
        for message in messages:
            schema = Schema(schema.kind, schema.content, schema.references, message)
        return schema

    def _undetermined(self, message: str) -> SchemaError:
        return SchemaError(message) if self.payloads else UndeterminedTypeError(message)

    def _framing(self) -> Framing:
        return self.decoding.framing_of(self.side)

    def _format(self) -> Any:
        return self.decoding.format_of(self.side)

    def _samples(self) -> Iterator[tuple[pa.Array, pa.Array | None]]:
        """Yield the payloads and headers of the first batches, until they have some thousand rows with payloads."""
        if self.sample is None:
            return
        columns = [str(self.side), *(["headers"] if self._framing() in ID_HEADERS else [])]
        rows = 0
        for batch in self.sample(columns):
            column = batch.column(self.side)
            yield column, batch.column("headers") if "headers" in columns else None
            rows += len(column) - column.null_count
            self.payloads = rows
            if rows >= MAX_SAMPLE_ROWS:
                return

    def _inferred(self) -> pa.DataType:
        """Return the type of JSON in the first records, and of the earlier ones."""
        found: list[Payloads] = []
        rows, size = 0, 0
        for column, _ in self._samples():
            part = self._first_payloads(column, MAX_SAMPLE_ROWS - rows)
            if len(part):
                found.append(part)
            rows += len(part)
            size += int((part.ends - part.starts).sum())
            if size >= _MAX_SAMPLE_BYTES:
                break
        if not found and self.known is None:
            raise self._undetermined(
                f"no record has a {self.side} to infer a type of JSON from: {GIVE_SCHEMA}"
            )
        return infer_json_type(found, self.known)

    def _first_payloads(self, column: pa.Array, most: int) -> Payloads:
        """Return the first payloads of a column, without its nulls and without those whose framing is damaged."""
        frames = frames_of(column, None, self.side, self._framing(), self._format())
        rows = np.flatnonzero(frames.groups >= 0)[:most]
        payloads = frames.payloads
        return Payloads(payloads.data, payloads.starts[rows], payloads.ends[rows])
