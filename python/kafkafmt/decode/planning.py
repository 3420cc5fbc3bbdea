"""Find the types that keys and values are decoded to, and make the decoders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from kafkafmt._util.names import some_names
from kafkafmt._util.sizes import MIB
from kafkafmt._util.user_errors import ArgumentError
from kafkafmt.decode.batch_decoder import BatchDecoder, ColumnDecoder, frames_of, warn_of_left_out
from kafkafmt.decode.fields import lacking_fields, with_fields
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
    from kafkafmt.decode.framing import Framing, Writer
    from kafkafmt.decode.payloads import Message, SchemaKind

_MAX_SAMPLE_BYTES = 32 * MIB
# How many ids are looked up to find the newest schema: payloads that are damaged may have thousands.
_MAX_LOOKUPS = 100


def plan_decoder(
    decoding: DecodingOptions,
    columns: Sequence[str],
    topics: Sequence[str],
    sample: Sample | None,
    id_samples: Sequence[Sample],
    known: pa.Schema | None,
    *,
    keeps_types: bool = False,
) -> BatchDecoder:
    """Return the decoder of `Decoding.decoder`."""
    schemas = None if decoding.schemas is None else schema_source(decoding.schemas)
    sides = [side for side in decoding.sides() if side in columns]
    if not sides:
        raise ArgumentError(f"{' and '.join(decoding.sides())} are decoded, but are not among the columns")
    decoders = {
        side: _Planner(
            decoding, side, schemas, topics, sample, id_samples, _type_of(known, side), keeps_types
        ).decoder()
        for side in sides
    }
    return BatchDecoder(columns, decoders, decoding.on_error)


def _type_of(known: pa.Schema | None, side: Side) -> pa.DataType | None:
    return known.field(side).type if known is not None and side in known.names else None


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

    known: that of earlier ones. keeps_types: whether the fields of `known` keep their types, if ids select schemas.
    payloads: how many were read to find it. lookups: the schemas of ids that they have, or why there are none.
    """

    decoding: DecodingOptions
    side: Side
    schemas: SchemaSource | Schema | None
    topics: Sequence[str]
    sample: Sample | None
    id_samples: Sequence[Sample]
    known: pa.DataType | None
    keeps_types: bool = False
    payloads: int = 0
    lookups: dict[SchemaId, Schema | SchemaError] = field(default_factory=dict)

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
        reader = self._of_subjects(SCHEMA_KINDS[name])
        return self._of_records(SCHEMA_KINDS[name]) if reader is None else self._with_reader(reader)

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

    def _of_subjects(self, kind: SchemaKind) -> Schema | None:
        """Return the one schema that is given, or else the newest one of the topics. None if they have none."""
        if isinstance(self.schemas, Schema):
            return self.schemas
        assert self.schemas is not None
        found = {topic: self.schemas.newest(f"{topic}-{self.side}", kind) for topic in self.topics}
        known = {schema for schema in found.values() if schema is not None}
        if len(known) > 1:
            names = ", ".join(sorted(topic for topic, schema in found.items() if schema is not None))
            raise SchemaError(f"topics {names} have different schemas of {self.side}s: {GIVE_READER}")
        if known and kind == "PROTOBUF":
            return _of_message(known.pop(), self._message(self._first_writers(kind)))
        return known.pop() if known else None

    def _of_records(self, kind: SchemaKind) -> ColumnDecoder:
        """Return the decoder to the type of a schema of the sampled records, with the columns that are known."""
        counts, first = self._sampled_writers(kind)
        if not counts:
            if self.known is None:
                raise self._no_schema()
            return self._column_decoder(self.known)
        message = self._message(first)
        newest = self._with_known_fields(self._newest_of(counts, message, kind))
        own = payload_format(kind).read_type(newest)
        if self.known is not None and self.keeps_types:
            reader = newest if kind == "JSON" else None
            decoder = self._column_decoder(with_fields(self.known, own), reader=reader)
        elif self.known is not None and self._loses_columns(own, newest, counts):
            decoder = self._column_decoder(with_fields(own, self.known))
        else:
            decoder = self._with_reader(newest)
        if kind == "JSON":
            self._warn_of_left_out(decoder.type)
        return decoder

    def _warn_of_left_out(self, kind: pa.DataType) -> None:
        """Warn of the fields of JSON that a type lacks. Its decoders do not look at the schemas of writers."""
        for schema_id, schema in self._known_schemas().items():
            with suppress(SchemaError):  # payloads are decoded without it
                written = payload_format(schema.kind).read_type(schema)
                warn_of_left_out(self.side, schema_id, list(lacking_fields(written, kind)))

    def _message(self, writers: Sequence[Writer]) -> Message | None:
        """Return the one Protobuf message that writers name. None if they name none."""
        messages = {writer.message for writer in writers if writer.message is not None}
        if len(messages) > 1:
            raise SchemaError(f"the {self.side}s are of {len(messages)} Protobuf messages: {GIVE_READER}")
        return messages.pop() if messages else None

    def _no_schema(self) -> SchemaError:
        """Return the error of records that have no id of a known schema."""
        for error in self.lookups.values():
            if isinstance(error, SchemaError):
                named = some_names(self.topics) or "the records"
                return type(error)(f"no schema is found for the {self.side}s of {named}: {error}")
        return self._undetermined(
            f"no schema of {self.side}s is found by topic, and no record has the id of one: {GIVE_SCHEMA}"
        )

    def _writers(self, sample: Sample) -> Iterator[list[tuple[Writer, int]]]:
        """Yield the writers of each batch of a sample, with the numbers of their records, those of most first."""
        size = 0
        for column, headers in self._samples(sample):
            frames = frames_of(column, headers, self.side, self._framing(), self._format())
            counts = np.bincount(frames.groups[frames.groups >= 0], minlength=len(frames.writers))
            order = np.argsort(-counts, kind="stable").tolist()
            yield [(frames.writers[place], int(counts[place])) for place in order if counts[place]]
            size += column.nbytes
            if size >= _MAX_SAMPLE_BYTES:
                return

    def _first_writers(self, kind: SchemaKind) -> list[Writer]:
        """Return the writers in the first batch that has a known schema. Payloads that are damaged may have others."""
        for sample in self.id_samples:
            for found in self._writers(sample):
                known = [writer for writer, _ in found if self._is_known(writer.schema_id, kind)]
                if known:
                    return known
        return []

    def _sampled_writers(self, kind: SchemaKind) -> tuple[Counter[SchemaId], list[Writer]]:
        """Return how many records have the id of each known schema, and the writers of the first batch with one."""
        for number, sample in enumerate(self.id_samples):
            counts: Counter[SchemaId] = Counter()
            first: list[Writer] = []
            for found in self._writers(sample):
                # An id of a damaged payload is rarely that of another one, so those of most records are looked up.
                known = [(writer, count) for writer, count in found if self._is_known(writer.schema_id, kind)]
                first = first or [writer for writer, _ in known]
                for writer, count in known:
                    assert writer.schema_id is not None
                    counts[writer.schema_id] += count
                if counts and number:
                    break
            if counts:
                return counts, first
        return Counter(), []

    def _is_known(self, schema_id: SchemaId | None, kind: SchemaKind) -> bool:
        if schema_id is None:
            return False
        if schema_id not in self.lookups and len(self.lookups) < _MAX_LOOKUPS:
            assert self.schemas is not None
            assert not isinstance(self.schemas, Schema)
            try:
                self.lookups[schema_id] = self.schemas.schema(schema_id, kind)
            except SchemaError as error:
                self.lookups[schema_id] = error
        return isinstance(self.lookups.get(schema_id), Schema)

    def _known_schemas(self) -> dict[SchemaId, Schema]:
        return {schema_id: found for schema_id, found in self.lookups.items() if isinstance(found, Schema)}

    def _newest_of(self, counts: Counter[SchemaId], message: Message | None, kind: SchemaKind) -> Schema:
        """Return the newest schema that has all fields of the schema of most records.

        A newer one of another record type does not count: it would make errors of the other records.
        """
        assert self.schemas is not None
        assert not isinstance(self.schemas, Schema)
        schemas = {one: _of_message(found, message) for one, found in self._known_schemas().items()}
        best = most = schemas[max(counts, key=lambda schema_id: counts[schema_id])]
        ids = [one for one in counts if schemas[one] == most or _keeps_fields(most, schemas[one])]
        with suppress(SchemaError):  # the source does not tell it
            newest = _of_message(self.schemas.newest_after(ids, kind), message)
            if newest == most or _keeps_fields(most, newest):
                return newest
        for schema_id in ids:
            if _keeps_fields(best, schemas[schema_id]):
                best = schemas[schema_id]
        return best

    def _with_known_fields(self, newest: Schema) -> Schema:
        """Return `newest`, or another schema of the folder that has its fields and more of those that are known.

        It has no other fields. Records with the older schema may come after others, as while producers are replaced.
        """
        if not isinstance(self.schemas, SchemaFiles) or self.known is None:
            return newest
        form = payload_format(newest.kind)
        own = form.read_type(newest)
        best, least = newest, len(list(lacking_fields(self.known, own)))
        for schema in self.schemas.of_kind(newest.kind) if least else ():
            candidate = replace(schema, message=newest.message)
            with suppress(SchemaError):
                found = form.read_type(candidate)
                lacking = len(list(lacking_fields(self.known, found)))
                has_others = any(lacking_fields(found, with_fields(own, self.known)))
                if lacking < least and not has_others and _keeps_fields(newest, candidate):
                    best, least = candidate, lacking
        return best

    def _loses_columns(self, own: pa.DataType, reader: Schema, counts: Counter[SchemaId]) -> bool:
        """Return whether sampled records have known fields that the type of the reader, `own`, would lose."""
        assert self.known is not None
        lacking = set(lacking_fields(self.known, own))
        if reader.kind == "JSON" or not lacking:  # JSON is decoded without the schemas of writers
            return False
        for schema_id, found in self._known_schemas().items():
            schema = replace(found, message=reader.message)
            if schema_id in counts and not _keeps_fields(schema, reader):
                with suppress(SchemaError):
                    kind = payload_format(schema.kind).read_type(schema)
                    if lacking - set(lacking_fields(self.known, kind)):
                        return True
        return False

    def _undetermined(self, message: str) -> SchemaError:
        return SchemaError(message) if self.payloads else UndeterminedTypeError(message)

    def _framing(self) -> Framing:
        return self.decoding.framing_of(self.side)

    def _format(self) -> Any:
        return self.decoding.format_of(self.side)

    def _samples(self, sample: Sample) -> Iterator[tuple[pa.Array, pa.Array | None]]:
        """Yield the payloads and headers of the first batches, until they have some thousand rows with payloads."""
        columns = [str(self.side), *(["headers"] if self._framing() in ID_HEADERS else [])]
        rows = 0
        for batch in sample(columns):
            column = batch.column(self.side)
            yield column, batch.column("headers") if "headers" in columns else None
            rows += len(column) - column.null_count
            self.payloads = max(self.payloads, rows)
            if rows >= MAX_SAMPLE_ROWS:
                return

    def _inferred(self) -> pa.DataType:
        """Return the type of JSON in the first records, and of the earlier ones."""
        found: list[Payloads] = []
        rows, size = 0, 0
        for column, _ in self._samples(self.sample) if self.sample is not None else ():
            part = self._first_payloads(column, MAX_SAMPLE_ROWS - rows)
            if len(part):
                found.append(part)
            rows += len(part)
            size += int((part.ends - part.starts).sum())
            if size >= _MAX_SAMPLE_BYTES:
                break
        known = self.known if self.known is not None and pa.types.is_struct(self.known) else None
        if not found and known is None:
            raise self._undetermined(
                f"no record has a {self.side} to infer a type of JSON from: {GIVE_SCHEMA}"
            )
        return infer_json_type(found, known)

    def _first_payloads(self, column: pa.Array, most: int) -> Payloads:
        """Return the first payloads of a column, without its nulls and without those whose framing is damaged."""
        frames = frames_of(column, None, self.side, self._framing(), self._format())
        rows = np.flatnonzero(frames.groups >= 0)[:most]
        payloads = frames.payloads
        return Payloads(payloads.data, payloads.starts[rows], payloads.ends[rows])


def _of_message(schema: Schema, message: Message | None) -> Schema:
    return schema if message is None else replace(schema, message=message)


def _keeps_fields(writer: Schema, reader: Schema) -> bool:
    """Return whether a schema of the reader has all fields of what a writer writes, and can read it."""
    try:
        return not payload_format(writer.kind).left_out(writer, reader)
    except SchemaError:
        return False
