"""Decode the keys and values of record batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kafkafmt._util.names import some_names
from kafkafmt.columns.arrow import text_array
from kafkafmt.columns.read import arrow_schema
from kafkafmt.decode.arrays import ColumnBudget
from kafkafmt.decode.binary_rows import BinaryRows, binary_rows
from kafkafmt.decode.evolving import EvolvingDecoder
from kafkafmt.decode.fields import lacking_fields
from kafkafmt.decode.formats import payload_format
from kafkafmt.decode.framing import ID_HEADERS, MESSAGE_HEADERS, Frames, Framing, Writer, find_frames
from kafkafmt.decode.grouping import in_row_order, rows_of_groups
from kafkafmt.decode.header_values import header_values
from kafkafmt.decode.json_ import JsonDecoder
from kafkafmt.decode.json_schema import text_fields_of
from kafkafmt.decode.payloads import (
    DecodedPayloads,
    PayloadDecoder,
    Payloads,
    Schema,
    SchemaError,
    SchemaKind,
    WrittenFormat,
)
from kafkafmt.decode.primitives import primitive_decoder

if TYPE_CHECKING:
    from kafkafmt.decode.options import Format, OnError, Side
    from kafkafmt.decode.schemas.source import SchemaId, SchemaSource

_LOG = logging.getLogger(__name__)
_CONFLUENT_FRAMINGS = ("confluent", "confluent-headers")
_PLACE_COLUMNS = ("topic", "partition", "offset")


@dataclass
class ColumnDecoder:
    """Decodes the keys or the values of batches. It can be pickled, and then makes its decoders again.

    schemas: a source by id, one schema of all payloads, or None for formats without. reader: the schema of the
    reader; None if `type` is given, to which values are cast. That of JSON only says which text fields have any JSON.
    strict: fields of JSON that `type` lacks are errors.
    """

    side: Side
    format: Format
    framing: Framing
    schemas: SchemaSource | Schema | None
    type: pa.DataType
    reader: Schema | None = None
    strict: bool = False
    _decoders: dict[Writer, PayloadDecoder] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoders": {}}

    @property
    def kind(self) -> SchemaKind | None:
        from kafkafmt.decode.options import SCHEMA_KINDS

        return SCHEMA_KINDS.get(self.format)

    def decode(self, column: pa.Array, headers: pa.Array | None) -> DecodedPayloads:
        """Decode the payloads of a column. Null stays null.

        One limit holds for the columns of all writers together. Those of a writer are counted after they are complete,
        so the peak may be twice the limit.

        Raises OverflowError if the values of several payloads do not fit into one column, or take too many bytes.
        """
        frames = self._by_decoder(frames_of(column, headers, self.side, self.framing, self.format))
        count = len(column)
        errors = dict(frames.errors)
        parts = []
        payloads = frames.payloads
        budget = ColumnBudget(payloads.size_in_bytes)
        groups = rows_of_groups(frames.groups, len(frames.writers))
        for writer, rows in zip(frames.writers, groups, strict=True):
            if not len(rows):
                continue
            decoder = self._decoder(writer)
            if isinstance(decoder, str):
                errors.update(dict.fromkeys(rows.tolist(), decoder))
                continue
            part = payloads
            if len(rows) < count:
                part = Payloads(payloads.data, payloads.starts[rows], payloads.ends[rows])
            try:
                decoded = decoder.decode(part)
            except OverflowError as error:
                if len(rows) > 1:
                    raise
                errors[int(rows[0])] = str(error)
                continue
            if len(rows) < count:  # else the decoder has counted them
                budget.take(decoded.array.nbytes)
            parts.append((rows, decoded.array))
            errors.update((int(rows[index]), message) for index, message in decoded.errors.items())
        return DecodedPayloads(in_row_order(self.type, parts, count), errors)

    def _by_decoder(self, frames: Frames) -> Frames:
        """Return frames with a writer for each decoder. Ids count only if schemas are looked up by them.

        Otherwise payloads could have any id, and each of them would get a decoder that is kept.
        """
        if self.kind is not None and self.format != "json" and not isinstance(self.schemas, Schema):
            return frames
        known: dict[Writer, int] = {}
        numbers = [known.setdefault(Writer(None, found.message), len(known)) for found in frames.writers]
        return frames._replace(writers=tuple(known), groups=np.array([*numbers, -1])[frames.groups])

    def _decoder(self, writer: Writer) -> PayloadDecoder | str:
        """Return the decoder of the payloads of a writer, or why there is none."""
        found = self._decoders.get(writer)
        if found is None:
            try:
                found = self._made_decoder(writer)
            except SchemaError as error:
                return " ".join(
                    str(error).split()
                )  # a schema that is missing may be there for the next batch
            self._decoders[writer] = found
        return found

    def _made_decoder(self, writer: Writer) -> PayloadDecoder:
        if self.kind is None:
            return primitive_decoder(self.format)
        if self.format == "json":  # JSON is read without the schema of its writer
            text_fields = frozenset() if self.reader is None else text_fields_of(self.reader)
            return JsonDecoder(self.type, strict=self.strict, text_fields=text_fields)
        schema = self.writer_schema(writer)
        form = payload_format(schema.kind)
        assert isinstance(form, WrittenFormat)
        if self.reader is not None:
            if schema != self.reader:
                warn_of_left_out(self.side, writer.schema_id, form.left_out(schema, self.reader))
            return self._framed_decoder(form.decoder(schema, self.reader), schema)
        own = self._framed_decoder(form.decoder(schema, schema), schema)
        decoder = EvolvingDecoder(own, self.type)
        warn_of_left_out(self.side, writer.schema_id, list(lacking_fields(own.type, self.type)))
        return decoder

    def _framed_decoder(self, decoder: PayloadDecoder, writer: Schema) -> PayloadDecoder:
        """Return the decoder of payloads as the serializers of the framing write them."""
        if writer.kind != "AVRO" or self.framing not in _CONFLUENT_FRAMINGS:
            return decoder
        from kafkafmt.decode.avro.bare_bytes import confluent_decoder

        return confluent_decoder(writer, decoder)

    def writer_schema(self, writer: Writer) -> Schema:
        """Return the schema of a writer, with the message that its framing names."""
        assert self.kind is not None
        assert self.schemas is not None
        if isinstance(self.schemas, Schema):
            schema = self.schemas
        elif writer.schema_id is None:
            raise SchemaError("the framing has no id of a schema: give one schema, or another framing")
        else:
            schema = self.schemas.schema(writer.schema_id, self.kind)
        return schema if writer.message is None else replace(schema, message=writer.message)


def warn_of_left_out(side: Side, schema_id: SchemaId | None, names: Sequence[str]) -> None:
    """Log a warning if payloads with an id have fields that are left out. schema_id: None if ids select no schemas."""
    if schema_id is not None and names:
        _warn_once(
            f"{side}s with {schema_id} have fields that the type of the reader lacks, and that are left out: "
            f"{some_names(names)}"
        )


@lru_cache(maxsize=1024)
def _warn_once(message: str) -> None:
    """Log a warning once in a process, which may read many tasks."""
    _LOG.warning(message)


def frames_of(
    column: pa.Array, headers: pa.Array | None, side: Side, framing: Framing, name: Format
) -> Frames:
    """Return the payloads of a column without their framing."""
    rows = binary_rows(column)
    ids: dict[Any, BinaryRows] = {}
    for kind, header in ID_HEADERS.get(framing, {}).items():
        assert headers is not None
        ids[kind] = header_values(headers, header.format(side=side))
    if name != "protobuf" or framing not in MESSAGE_HEADERS:
        return find_frames(framing, rows, ids, with_messages=name == "protobuf")
    assert headers is not None
    names = header_values(headers, MESSAGE_HEADERS[framing], first=side == "key")
    return find_frames(framing, rows, ids, with_messages=True, names=names)


class BatchDecoder:
    """Decodes the keys and values of record batches. It can be pickled.

    input_columns: the columns of batches that `decode` takes, in order.
    schema: of what it returns.
    """

    def __init__(
        self, columns: Sequence[str], decoders: Mapping[Side, ColumnDecoder], on_error: OnError
    ) -> None:
        self._columns = tuple(columns)
        sides: tuple[Side, Side] = ("key", "value")
        self._decoders = {side: decoders[side] for side in sides if side in columns and side in decoders}
        self._on_error = on_error
        needed = {*_PLACE_COLUMNS} if on_error == "raise" and self._decoders else set()
        if any(decoder.framing in ID_HEADERS for decoder in self._decoders.values()):
            needed.add("headers")
        self.input_columns = (*self._columns, *sorted(needed - set(self._columns)))
        self.schema = self._schema()

    def _schema(self) -> pa.Schema:
        types = {str(side): decoder.type for side, decoder in self._decoders.items()}
        fields = [
            pa.field(found.name, types.get(found.name, found.type)) for found in arrow_schema(self._columns)
        ]
        if self._on_error == "column":
            fields += [pa.field(f"{side}_error", pa.string()) for side in self._decoders]
        return pa.schema(fields)

    def projected(self, names: Sequence[str]) -> BatchDecoder | None:
        """Return the decoder whose result has the columns `names` of `schema`, and perhaps others.

        Returns None if nothing that these columns have is decoded.
        """
        sides = {side for side in self._decoders if side in names or f"{side}_error" in names}
        if not sides:
            return None
        columns = [name for name in self._columns if name in names or name in sides]
        return BatchDecoder(columns, {side: self._decoders[side] for side in sides}, self._on_error)

    def decode_parts(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield the rows of a batch and the decoded ones: in halves if their values do not fit into one column.

        Raises as `decode`, but OverflowError only for one row.
        """
        try:
            decoded = self.decode(batch)
        except OverflowError:
            middle = batch.num_rows // 2
            if not middle:
                raise
            yield from self.decode_parts(batch[:middle])
            yield from self.decode_parts(batch[middle:])
        else:
            yield batch, decoded

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decode a batch with the columns `input_columns`, in any order. The rows stay in order.

        Raises DecodingError for the first payload that cannot be decoded, if errors are to be raised, SchemaSourceError
        if a source of schemas does not answer, and OverflowError if the values do not fit into one column.
        """
        headers = batch.column("headers") if "headers" in batch.schema.names else None
        decoded = {
            str(side): decoder.decode(batch.column(side), headers) for side, decoder in self._decoders.items()
        }
        arrays = [decoded[name].array if name in decoded else batch.column(name) for name in self._columns]
        for side, found in decoded.items():
            if found.errors and self._on_error == "raise":
                self._raise(batch, side, found.errors)
        if self._on_error == "column":
            arrays += [_error_column(found.errors, batch.num_rows) for found in decoded.values()]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _raise(self, batch: pa.RecordBatch, side: str, errors: Mapping[int, str]) -> None:
        from kafkafmt.decode.options import DecodingError

        row = min(errors)
        topic, partition, offset = (batch.column(name)[row].as_py() for name in _PLACE_COLUMNS)
        raise DecodingError(f"{topic}-{partition}, offset {offset}: the {side} is damaged: {errors[row]}")


def _error_column(errors: Mapping[int, str], count: int) -> pa.Array:
    if not errors:
        return pa.nulls(count, pa.string())
    rows = np.array(sorted(errors), np.int64)
    # A registry may have names with surrogates alone, which no column can have.
    texts = text_array([errors[row].encode("utf-8", "backslashreplace").decode() for row in rows.tolist()])
    return in_row_order(pa.string(), [(rows, texts)], count)
