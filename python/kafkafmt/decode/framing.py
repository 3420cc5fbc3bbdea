"""Find the schema ids of payloads, and where the payloads start, for all rows of a column at once.

| framing | payload or header |
|---|---|
| confluent | byte 0 and an id of 4 bytes, or byte 1 and a GUID of 16 bytes; then message indexes for Protobuf |
| confluent-headers | the same bytes in the header `__key_schema_id` or `__value_schema_id` of the record; in the payload if it has no such header |
| apicurio | byte 0 and a contentId of 4 bytes (Apicurio 3), or byte 0 and a globalId of 8 bytes (Apicurio 2) whose first 4 bytes are 0; then a `Ref` for Protobuf |
| apicurio-headers | an id of 8 bytes in the header `apicurio.value.globalId`, `apicurio.value.contentId` and for keys `apicurio.key...`; for Protobuf the message in the header `apicurio.protobuf.type` (Apicurio 2), a `Ref` in the payload, or both (Apicurio 3) |
| glue | byte 3, byte 0 or 5 (zlib), a UUID of 16 bytes; then, compressed with the payload, a message index for Protobuf |
| none | the payload only |
| auto | for JSON: as confluent if the first byte is 0 or 1, else the payload only |

Ids of registries start at 1, so an Apicurio id of 4 bytes is never 0. All numbers are big-endian.
"""  # noqa: E501

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from kafkafmt.decode.binary_rows import BinaryRows
from kafkafmt.decode.grouping import group_rows, rows_of_groups
from kafkafmt.decode.message_names import (
    APICURIO_REFS,
    GLUE_INDEXES,
    MESSAGE_INDEXES,
    WHOLE_NAMES,
    MessageNames,
    ref_of,
)
from kafkafmt.decode.payloads import Message, Payloads
from kafkafmt.decode.schemas.source import IdKind, SchemaId

if TYPE_CHECKING:
    from numpy.typing import NDArray

Framing: TypeAlias = Literal[
    "auto", "confluent", "confluent-headers", "apicurio", "apicurio-headers", "glue", "none"
]
MAX_DECOMPRESSED_BYTES = 64 << 20  # of a payload of Glue; a Kafka record is rarely larger than some MiB
MAX_DECOMPRESSED_BATCH_BYTES = 1 << 30  # of all payloads of a batch

_MAGIC_ID = 0
_MAGIC_GUID = 1
_ID_BYTES = 4
_LONG_ID_BYTES = 8
_UUID_BYTES = 16
_GLUE_VERSION = 3
_GLUE_PLAIN = 0
_GLUE_ZLIB = 5
_GLUE_HEADER_BYTES = 2 + _UUID_BYTES

# The header names of a framing, by kind of id; {side} is key or value.
ID_HEADERS: dict[str, dict[IdKind, str]] = {
    "confluent-headers": {"id": "__{side}_schema_id"},
    "apicurio-headers": {"globalId": "apicurio.{side}.globalId", "contentId": "apicurio.{side}.contentId"},
}
# The header with the name of the Protobuf message. Keys and values have the same; that of the key comes first.
MESSAGE_HEADERS: dict[str, str] = {"apicurio-headers": "apicurio.protobuf.type"}


class Writer(NamedTuple):
    """What framing says of the schema of a payload: its id, and the Protobuf message. None if it does not say."""

    schema_id: SchemaId | None
    message: Message | None


class Frames(NamedTuple):
    """Payloads without their framing, a row each.

    groups: the number in `writers` of the writer of each row; -1 if the row is null, or in `errors`.
    errors: what is wrong with the framing of rows.
    """

    payloads: Payloads
    groups: NDArray[np.int64]
    writers: Sequence[Writer]
    errors: dict[int, str]


@dataclass
class _FrameBuilder:
    """Collects the frames of a column. names: how the framing names Protobuf messages; None for other formats."""

    rows: BinaryRows
    names: MessageNames | None
    data: NDArray[np.uint8] = field(init=False)
    starts: NDArray[np.int64] = field(init=False)
    ends: NDArray[np.int64] = field(init=False)
    groups: NDArray[np.int64] = field(init=False)
    writers: list[Writer] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.data = self.rows.data
        self.starts = self.rows.starts.copy()
        self.ends = self.rows.ends.copy()
        self.groups = np.full(len(self.rows), -1, np.int64)

    def frames(self) -> Frames:
        payloads = Payloads(self.data, self.starts, self.ends)
        return Frames(payloads, self.groups, tuple(self.writers), self.errors)

    def fitting(
        self, rows: NDArray[np.int64], fits: NDArray[np.bool_], source: BinaryRows, expected: str
    ) -> NDArray[np.int64]:
        """Return the rows that fit. The others become errors; source has their bytes."""
        if fits.all():
            return rows
        for row in rows[~fits].tolist():
            found = source.row(row)
            shown = found[:20].hex() or "nothing"
            self.errors[row] = f"position 0: expected {expected}; found {len(found)} bytes: {shown}"
        return rows[fits]

    def add_unframed(self, rows: NDArray[np.int64]) -> None:
        """Add rows whose payloads are all of their bytes."""
        if len(rows):
            self.groups[rows] = len(self.writers)
            self.writers.append(Writer(None, None))

    def add(self, rows: NDArray[np.int64], ids: _Ids, names_in: BinaryRows, after: NDArray[np.int64]) -> None:
        """Add rows with their ids. names_in, after: the bytes and positions, one a row, where message names start."""
        if not len(rows):
            return
        keys = list(ids.words)
        if self.names is not None:
            lengths = self.names.lengths(names_in.data, after, names_in.ends[rows])
            kept = self.fitting(rows, lengths > 0, names_in, f"{self.names.what} after the schema id")
            if len(kept) < len(rows):
                fits = lengths > 0
                self.add(kept, ids.of(fits), names_in, after[fits])
                return
            keys.extend(_words(names_in.data, after, lengths))
            stops = after + lengths
        else:
            stops = after
        if names_in is self.rows:
            self.starts[rows] = stops
        first, groups = group_rows(keys)
        for row, places in zip(first.tolist(), rows_of_groups(groups, len(first)), strict=True):
            members = rows[places]
            message: Message | None = None
            if self.names is not None:
                try:
                    message = self.names.read(names_in.data[after[row] : stops[row]].tobytes())
                except ValueError as error:
                    position = after[row] - names_in.starts[rows[row]]
                    self.errors.update(dict.fromkeys(members.tolist(), f"position {position}: {error}"))
                    continue
            self.groups[members] = len(self.writers)
            self.writers.append(Writer(ids.identity(row), message))


class _Ids(NamedTuple):
    """The schema ids of rows. words: their bytes as columns of integers of at most 8 bytes, in order."""

    kind: IdKind
    words: Sequence[NDArray[np.uint64]]

    def of(self, chosen: NDArray[np.bool_]) -> _Ids:
        return _Ids(self.kind, [word[chosen] for word in self.words])

    def identity(self, row: int) -> SchemaId:
        numbers = [int(word[row]) for word in self.words]
        if len(numbers) == 1:
            return SchemaId(self.kind, numbers[0])
        return SchemaId(self.kind, str(uuid.UUID(int=numbers[0] << 64 | numbers[1])))


def find_frames(
    framing: Framing,
    rows: BinaryRows,
    headers: Mapping[IdKind, BinaryRows],
    *,
    with_messages: bool,
    names: BinaryRows | None = None,
) -> Frames:
    """Return the payloads of a column without their framing.

    headers: the values of the headers `ID_HEADERS[framing]` of each row, for framings with ids in headers.
    with_messages: the payloads are Protobuf, so the framing names messages.
    names: the values of the header `MESSAGE_HEADERS[framing]` of each row, for Protobuf.
    """
    if framing == "none":
        groups = rows.present.astype(np.int64) - 1
        return Frames(Payloads(rows.data, rows.starts, rows.ends), groups, (Writer(None, None),), {})
    names_in_payload = APICURIO_REFS if framing.startswith("apicurio") else MESSAGE_INDEXES
    if framing == "glue":
        names_in_payload = GLUE_INDEXES
    builder = _FrameBuilder(rows, names_in_payload if with_messages else None)
    present = np.flatnonzero(rows.present)
    if framing == "auto":
        first = _first_bytes(rows, present)
        framed = (first == _MAGIC_ID) | (first == _MAGIC_GUID)
        _confluent(builder, present[framed], rows)
        builder.add_unframed(present[~framed])
    elif framing == "confluent":
        _confluent(builder, present, rows)
    elif framing == "confluent-headers":
        in_header = headers["id"].present[present]
        _confluent(builder, present[in_header], headers["id"])
        _confluent(builder, present[~in_header], rows)
    elif framing == "apicurio":
        _apicurio(builder, present)
    elif framing == "apicurio-headers":
        _apicurio_headers(builder, present, headers, names)
    else:
        _glue(builder, present)
    return builder.frames()


def _first_bytes(source: BinaryRows, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first byte of each row, or -1 if the row is empty."""
    starts = source.starts[rows]
    found = np.full(len(rows), -1, np.int64)
    filled = starts < source.ends[rows]
    found[filled] = source.data[starts[filled]]
    return found


def _words(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[Any]:
    """Return the bytes of rows as columns of integers: two rows are equal if all columns are, and their lengths."""
    columns: list[Any] = [lengths]
    last = len(data) - 1
    for start in range(0, int(lengths.max()), 8):
        word = np.zeros(len(starts), np.uint64)
        for place in range(start, start + 8):
            byte = np.where(place < lengths, data[np.minimum(starts + place, last)], 0)
            word = (word << np.uint64(8)) | byte.astype(np.uint64)
        columns.append(word)
    return columns


def _confluent(builder: _FrameBuilder, rows: NDArray[np.int64], source: BinaryRows) -> None:
    expected = "byte 0 and a schema id of 4 bytes, or byte 1 and a GUID of 16 bytes"
    magic, lengths = _first_bytes(source, rows), source.ends[rows] - source.starts[rows]
    with_id = (magic == _MAGIC_ID) & (lengths > _ID_BYTES)
    with_guid = (magic == _MAGIC_GUID) & (lengths > _UUID_BYTES)
    builder.fitting(rows, with_id | with_guid, source, expected)
    numbered, unique = rows[with_id], rows[with_guid]
    ids = _Ids("id", [source.numbers(numbered, 1, _ID_BYTES)])
    builder.add(numbered, ids, source, source.starts[numbered] + 1 + _ID_BYTES)
    guids = _Ids("guid", [source.numbers(unique, 1, 8), source.numbers(unique, 9, 8)])
    builder.add(unique, guids, source, source.starts[unique] + 1 + _UUID_BYTES)


def _apicurio(builder: _FrameBuilder, rows: NDArray[np.int64]) -> None:
    source = builder.rows
    lengths = source.ends[rows] - source.starts[rows]
    fits = (_first_bytes(source, rows) == _MAGIC_ID) & (lengths > _ID_BYTES)
    rows = builder.fitting(rows, fits, source, "byte 0 and an id of 4 or 8 bytes")
    short = source.numbers(rows, 1, _ID_BYTES) != 0
    contents = rows[short]
    ids = _Ids("contentId", [source.numbers(contents, 1, _ID_BYTES)])
    builder.add(contents, ids, source, source.starts[contents] + 1 + _ID_BYTES)
    longer = rows[~short]
    fits = source.ends[longer] - source.starts[longer] > _LONG_ID_BYTES
    longer = builder.fitting(longer, fits, source, "byte 0 and an id of 8 bytes")
    ids = _Ids("globalId", [source.numbers(longer, 1, _LONG_ID_BYTES)])
    builder.add(longer, ids, source, source.starts[longer] + 1 + _LONG_ID_BYTES)


def _apicurio_headers(
    builder: _FrameBuilder,
    rows: NDArray[np.int64],
    headers: Mapping[IdKind, BinaryRows],
    names: BinaryRows | None,
) -> None:
    kinds: tuple[IdKind, IdKind] = ("globalId", "contentId")
    in_payload = builder.names
    for kind in kinds:
        found = headers[kind]
        chosen = rows[found.present[rows]]
        rows = rows[~found.present[rows]]
        fits = found.ends[chosen] - found.starts[chosen] == _LONG_ID_BYTES
        chosen = builder.fitting(chosen, fits, found, f"an id of 8 bytes in the header with the {kind}")
        if names is not None and in_payload is not None:
            named = chosen[names.present[chosen]]
            chosen = chosen[~names.present[chosen]]
            builder.names = WHOLE_NAMES
            builder.add(
                named, _Ids(kind, [found.numbers(named, 0, _LONG_ID_BYTES)]), names, names.starts[named]
            )
            builder.names = in_payload
            _skip_refs(builder, named)
        ids = _Ids(kind, [found.numbers(chosen, 0, _LONG_ID_BYTES)])
        builder.add(chosen, ids, builder.rows, builder.rows.starts[chosen])
    if len(rows):
        message = "expected a header with the globalId or the contentId of the schema; found none"
        builder.errors.update(dict.fromkeys(rows.tolist(), message))


def _skip_refs(builder: _FrameBuilder, rows: NDArray[np.int64]) -> None:
    """Skip the `Ref` at the start of payloads whose message a header names: Apicurio 3 writes both, Apicurio 2 not."""
    if not len(rows):
        return
    numbers: dict[str, int] = {}
    of_writers = [
        numbers.setdefault(one.message, len(numbers)) if isinstance(one.message, str) else -1
        for one in builder.writers
    ]
    groups = np.array([*of_writers, -1])[builder.groups[rows]]
    for name, places in zip(numbers, rows_of_groups(groups, len(numbers)), strict=True):
        ref = np.frombuffer(ref_of(name), np.uint8)
        members = rows[places]
        members = members[builder.ends[members] - builder.starts[members] >= len(ref)]
        bytes_at = builder.starts[members, np.newaxis] + np.arange(len(ref))
        builder.starts[members[(builder.data[bytes_at] == ref).all(axis=1)]] += len(ref)


def _glue(builder: _FrameBuilder, rows: NDArray[np.int64]) -> None:
    source = builder.rows
    lengths = source.ends[rows] - source.starts[rows]
    fits = (_first_bytes(source, rows) == _GLUE_VERSION) & (lengths >= _GLUE_HEADER_BYTES)
    rows = builder.fitting(rows, fits, source, "byte 3, a compression byte and a UUID of 16 bytes")
    compression = source.numbers(rows, 1, 1)
    fits = (compression == _GLUE_PLAIN) | (compression == _GLUE_ZLIB)
    rows = builder.fitting(rows, fits, source, "compression byte 0 or 5 (zlib) at position 1")
    words = [source.numbers(rows, 2, 8), source.numbers(rows, 10, 8)]
    builder.starts[rows] += _GLUE_HEADER_BYTES
    _decompress(builder, rows[source.numbers(rows, 1, 1) == _GLUE_ZLIB])
    whole = ~np.isin(rows, np.fromiter(builder.errors, np.int64, len(builder.errors)))
    rows = rows[whole]
    plain = BinaryRows(builder.data, builder.starts.copy(), builder.ends, source.present)
    builder.rows = plain
    builder.add(rows, _Ids("glue", words).of(whole), plain, plain.starts[rows])


def _decompress(builder: _FrameBuilder, rows: NDArray[np.int64]) -> None:
    """Replace payloads by what they decompress to. The others stay where they are; they precede the new bytes."""
    parts: list[Any] = [builder.data]
    size = len(builder.data)
    last = size + MAX_DECOMPRESSED_BATCH_BYTES
    for row in rows.tolist():
        packed = builder.data[builder.starts[row] : builder.ends[row]].tobytes()
        try:
            plain = _decompressed(packed, min(MAX_DECOMPRESSED_BYTES, last - size))
        except ValueError as error:
            builder.errors[row] = f"position {_GLUE_HEADER_BYTES}: {error}"
            continue
        parts.append(np.frombuffer(plain, np.uint8))
        builder.starts[row], builder.ends[row] = size, size + len(plain)
        size += len(plain)
    builder.data = np.concatenate(parts)


def _decompressed(packed: bytes, limit: int) -> bytes:
    """Return what a zlib stream decompresses to. Raises ValueError if it is damaged, or takes more than a limit."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(packed, limit + 1)  # 0 is no limit
    except zlib.error as error:
        raise ValueError(f"expected a zlib stream; {error}") from None
    if len(plain) > limit:
        raise ValueError(
            f"expected at most {MAX_DECOMPRESSED_BYTES} decompressed bytes of a payload, and"
            f" {MAX_DECOMPRESSED_BATCH_BYTES} of a batch; found more"
        )
    if not stream.eof:
        raise ValueError("the zlib stream is cut off")
    if stream.unused_data:
        raise ValueError(
            f"expected the end of the zlib stream; found {len(stream.unused_data)} bytes after it"
        )
    return plain
