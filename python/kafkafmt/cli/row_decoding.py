"""Decode the keys or the values of the rows of records, each by the schema that it was written with.

A scan decodes a whole column, whose type is that of one schema. Here each record shows the fields that it was written
with, so a topic may have records of any schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from kafkafmt.cli.json_values import json_values
from kafkafmt.columns.read import arrow_schema
from kafkafmt.decode import Decoding, Schema, SchemaError
from kafkafmt.decode.batch_decoder import ColumnDecoder, frames_of
from kafkafmt.decode.framing import Frames, Writer
from kafkafmt.decode.grouping import rows_of_groups

if TYPE_CHECKING:
    from kafkafmt.decode.batch_decoder import BatchDecoder
    from kafkafmt.decode.options import Side

Row = dict[str, Any]


class DecodedValue(NamedTuple):
    """A decoded key or value as JSON has it; error says why there is none."""

    value: Any
    error: str | None = None


@dataclass
class RowDecoder:
    """Decodes the keys or the values of rows. decoding: has the format of this side, its schemas and its framing."""

    side: Side
    decoding: Decoding
    _decoders: dict[Writer, BatchDecoder] = field(default_factory=dict)

    def decode(self, rows: Sequence[Row]) -> list[DecodedValue]:
        """Return the decoded keys or values. Raises SchemaSourceError if a source of schemas does not answer."""
        found: list[DecodedValue] = [DecodedValue(None)] * len(rows)
        frames = self.frames(rows)
        for number, error in frames.errors.items():
            found[number] = DecodedValue(None, error)
        groups = rows_of_groups(frames.groups, len(frames.writers))
        for writer, numbers in zip(frames.writers, groups, strict=True):
            for number, one in zip(
                numbers.tolist(), self._decoded(writer, [rows[at] for at in numbers.tolist()]), strict=True
            ):
                found[number] = one
        return found

    def frames(self, rows: Sequence[Row]) -> Frames:
        """Return the payloads of the rows without their framing."""
        name = self.decoding.format_of(self.side)
        assert name is not None
        batch = record_batch(rows, (self.side, "headers"))
        framing = self.decoding.framing_of(self.side)
        return frames_of(batch.column(0), batch.column(1), self.side, framing, name)

    def _decoded(self, writer: Writer, rows: Sequence[Row]) -> list[DecodedValue]:
        """Decode rows of one writer."""
        try:
            decoder = self._decoder(writer)
        except SchemaError as error:
            return [DecodedValue(None, " ".join(str(error).split()))] * len(rows)
        found: list[DecodedValue] = []
        for _, batch in decoder.decode_parts(record_batch(rows, decoder.input_columns)):
            values = json_values(batch.column(self.side))
            errors = batch.column(f"{self.side}_error").to_pylist()
            found += [DecodedValue(*one) for one in zip(values, errors, strict=True)]
        return found

    def _decoder(self, writer: Writer) -> BatchDecoder:
        """Return the decoder of a writer. Raises SchemaError if its schema is not known or not valid."""
        decoder = self._decoders.get(writer)
        if decoder is None:
            name, given = self.decoding.format_of(self.side), self.decoding
            decoding = Decoding(
                **{str(self.side): name},  # type: ignore[arg-type]
                schemas=given.schemas,
                framing=given.framing_of(self.side),
                reader_schema=None if given.schemas is None else self._schema(writer),
            )
            decoder = self._decoders[writer] = decoding.decoder([self.side])
        return decoder

    def _schema(self, writer: Writer) -> Schema:
        name, schemas = self.decoding.format_of(self.side), self.decoding.schemas
        assert name is not None
        framing = self.decoding.framing_of(self.side)
        # The type of the column is not needed to find a schema.
        return ColumnDecoder(self.side, name, framing, schemas, pa.null()).writer_schema(writer)  # type: ignore[arg-type]


def record_batch(rows: Sequence[Row], columns: Sequence[str]) -> pa.RecordBatch:
    """Return keys, values and headers of rows as columns."""
    schema = arrow_schema(columns)
    arrays = [
        pa.array([_headers(row) if name == "headers" else row[name] for row in rows], schema.field(name).type)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _headers(row: Row) -> list[dict[str, Any]]:
    return [
        {"key": key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
        for key, value in row["headers"]
    ]
