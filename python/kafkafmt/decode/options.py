"""What users say about the keys and values of records: their formats, framing and schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

from kafkafmt._util.user_errors import ArgumentError, UserError, ensure_one_of
from kafkafmt.decode.framing import Framing
from kafkafmt.decode.payloads import Schema, SchemaKind
from kafkafmt.decode.schemas.source import SchemaSource

if TYPE_CHECKING:
    import pyarrow as pa

Format: TypeAlias = Literal[
    "avro", "protobuf", "json", "text", "short", "integer", "long", "float", "double", "boolean", "uuid"
]
Side: TypeAlias = Literal["key", "value"]
OnError: TypeAlias = Literal["column", "raise"]
ReaderSchema: TypeAlias = "str | bytes | Schema | pa.DataType | pa.Schema"


class ArrowStream(Protocol):
    """Columns as Arrow's C stream, such as a scan."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


Schemas: TypeAlias = (
    "str | Path | Mapping[int | str, str | Path | Schema] | Schema | SchemaSource | ArrowStream"
)
# Reads records of the source with these columns, from its start.
Sample: TypeAlias = "Callable[[Sequence[str]], Iterable[pa.RecordBatch]]"

# The most records with payloads from which a type is inferred.
MAX_SAMPLE_ROWS = 10_000
SCHEMA_KINDS: dict[str, SchemaKind] = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


class DecodingError(UserError):
    """A key or a value cannot be decoded. Raised with `on_error="raise"`."""


@dataclass(frozen=True)
class DecodingOptions:
    """The options of `Decoding`, with the checks of what they say together. Raises ArgumentError, a ValueError."""

    key: Format | None = None
    value: Format | None = None
    schemas: Schemas | None = field(default=None, repr=False)  # a URL may have credentials
    framing: Framing | Mapping[Side, Framing] | None = None
    reader_schema: ReaderSchema | Mapping[Side, ReaderSchema] | None = field(default=None, repr=False)
    on_error: OnError = "column"

    def __post_init__(self) -> None:
        formats = [name for name in (self.key, self.value) if name is not None]
        for name in formats:
            ensure_one_of("format", name, get_args(Format))
        if not formats:
            raise ArgumentError("decoding needs the format of keys or of values")
        ensure_one_of("on_error", self.on_error, get_args(OnError))
        with_schemas = [name for name in formats if name in SCHEMA_KINDS]
        if self.schemas is not None and not with_schemas:
            raise ArgumentError(f"schemas have no effect on {' and '.join(formats)}")
        if self.reader_schema is not None and not with_schemas:
            raise ArgumentError(f"reader_schema has no effect on {' and '.join(formats)}")
        self._check_keys("framing", self.framing)
        self._check_keys("reader_schema", self.reader_schema)
        for side in self.sides():
            self._check_side(side)

    def _check_keys(self, name: str, given: object) -> None:
        """Raise ArgumentError for a map with a key that is no side, or that of a side which is not decoded."""
        for side in given if isinstance(given, Mapping) else ():
            if side not in get_args(Side):
                raise ArgumentError(f"{name}: expected keys of {', '.join(get_args(Side))}; found {side!r}")
            if side not in self.sides():
                raise ArgumentError(f"{name} of {side} has no effect, as {side}s are not decoded")

    def _check_side(self, side: Side) -> None:
        framing, name = self.framing_of(side), self.format_of(side)
        ensure_one_of("framing", framing, get_args(Framing))
        if framing == "auto" and name != "json":
            raise ArgumentError(
                f"framing auto is for json only: {name} can start with any byte, so it may be mistaken"
            )
        if name in {"avro", "protobuf"} and self.schemas is None:
            raise ArgumentError(
                f"{name} needs schemas (--schemas): a registry's URL, a folder, a file, or in Python a map of ids to "
                "files"
            )
        if framing not in {"none", "auto"} and name not in SCHEMA_KINDS:
            raise ArgumentError(f"framing {framing} has ids of schemas, which {name} does not have")

    def sides(self) -> list[Side]:
        """Return which of key and value are decoded."""
        sides: tuple[Side, Side] = ("key", "value")
        return [side for side in sides if self.format_of(side) is not None]

    def format_of(self, side: Side) -> Format | None:
        """Return the format of keys or of values."""
        return self.key if side == "key" else self.value

    def framing_of(self, side: Side) -> Framing:
        """Return the framing of keys or of values."""
        given = self.framing
        if isinstance(given, Mapping):
            given = given.get(side)
        elif self.format_of(side) not in SCHEMA_KINDS:
            given = None  # one framing for both is that of the formats with schemas
        if given is not None:
            return given
        by_id = self.schemas is not None and not is_one_schema(self.schemas)
        return "confluent" if by_id and self.format_of(side) in SCHEMA_KINDS else "none"

    def infers(self, side: Side) -> bool:
        """Return whether the type of keys or of values is inferred from the records: that of JSON without a schema."""
        has_schema = self.schemas is not None or self.reader_schema_of(side) is not None
        return self.format_of(side) == "json" and not has_schema

    def is_of_records(self, side: Side) -> bool:
        """Return whether the type of keys or of values may depend on the records: on JSON, or on ids of schemas."""
        by_ids = self.schemas is not None and not is_one_schema(self.schemas)
        by_ids = by_ids and self.format_of(side) in SCHEMA_KINDS and self.reader_schema_of(side) is None
        return by_ids or self.infers(side)

    def reader_schema_of(self, side: Side) -> ReaderSchema | None:
        """Return the schema of the reader of keys or of values, or None if none is given."""
        given = self.reader_schema
        if isinstance(given, Mapping):
            return given.get(side)
        return given if side == "value" or self.value not in SCHEMA_KINDS else None


def is_one_schema(schemas: Schemas) -> bool:
    """Return whether these are one schema, which all payloads have, so that they need no ids."""
    if isinstance(schemas, Schema):
        return True
    return isinstance(schemas, str | Path) and "://" not in str(schemas) and Path(schemas).is_file()
