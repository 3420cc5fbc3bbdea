"""The columns of a table that mode upsert needs: Kafka's own, with the key of each record."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from kafkafmt.export.errors import ExportError
from kafkafmt.export.schemas import KAFKA_PREFIX, VALUE


@dataclass(frozen=True)
class UpsertColumns:
    """The names of Kafka's own columns in a table. flattened: whether they have a prefix."""

    flattened: bool

    def __call__(self, name: str) -> str:
        return KAFKA_PREFIX * self.flattened + name

    def ensure(self, schema: pa.Schema, table: str) -> None:
        """Raise ExportError if the columns are missing, or if keys have a type that cannot be compared."""
        needed = [*map(self, ("topic", "partition", "offset", "timestamp", "key"))]
        if not self.flattened:
            needed.append(VALUE)  # tells which records have none
        for name in needed:
            if name not in schema.names:
                raise ExportError(f"{table}: mode upsert: expected the column {name!r}, found {schema.names}")
        kind = schema.field(self("key")).type
        if not (pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_integer(kind)):
            raise ExportError(
                f"{table}: mode upsert: expected keys of bytes, text or integers, found {kind}: decode keys as text or "
                "leave them as bytes"
            )
