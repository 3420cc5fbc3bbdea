"""The manifest of a segment in tiered storage, as the plugin of Aiven writes it: `<offset>-<segment id>.rsm-manifest`.

It is JSON. `version` is "1". Fields that are not known are ignored. All numbers are checked against Java's `int`, which
the plugin uses for positions and sizes.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafkafmt._util.sizes import MIB
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.chunks import ChunkIndex

VERSION = "1"
# The plugin's own limit for the encoded sizes of chunks.
_MAX_CODEC_BYTES = 10 * MIB
_MAX_CHUNKS = 2**21
_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1
# The names of the indexes in the manifest, and the suffixes of their files in a log directory.
INDEX_SUFFIXES = {
    "offset": ".index",
    "timestamp": ".timeindex",
    "producerSnapshot": ".snapshot",
    "leaderEpoch": ".leader-epoch-checkpoint",
    "transaction": ".txnindex",
}
_OPTIONAL_INDEX = "transaction"


@dataclass(frozen=True)
class WrappedDataKey:
    """The data key of a segment, wrapped by the key `key_id`. aad: the additional authenticated data of all chunks."""

    key_id: str
    wrapped: bytes
    aad: bytes


@dataclass(frozen=True)
class SegmentMetadata:
    """What Kafka told the plugin about the segment. leader_epochs: each epoch and its first offset, ascending."""

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int
    event_timestamp_ms: int
    leader_epochs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SegmentManifest:
    """A manifest. indexes: position and stored size in the `.indexes` object, by suffix of the file.

    metadata: None if the manifest has none.
    """

    chunks: ChunkIndex
    indexes: Mapping[str, tuple[int, int]]
    compressed: bool
    encryption: WrappedDataKey | None
    metadata: SegmentMetadata | None

    @classmethod
    def decode(cls, data: bytes, name: str) -> SegmentManifest:
        """Read a manifest. name: its path or URI, for errors. Raises StoredObjectError, which names the field."""
        try:
            return _decoded(data)
        except _FieldError as error:
            raise StoredObjectError(name, f"not a valid segment manifest: {error}") from None


class _FieldError(Exception):
    """A field is invalid. The message names it."""


def _decoded(data: bytes) -> SegmentManifest:
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_refused_constant)
    except UnicodeDecodeError as error:
        raise _FieldError(f"not UTF-8 at position {error.start}") from None
    except json.JSONDecodeError as error:
        raise _FieldError(f"not JSON at position {error.pos}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise _FieldError(f"not JSON: {error}") from None
    root = _Object(document, "")
    version = root.text("version")
    if version != VERSION:
        raise _FieldError(
            f"version: expected {VERSION!r}, found {version!r:.40}: another version of the plugin wrote it"
        )
    encrypted = root.optional("encryption")
    metadata = root.optional("remoteLogSegmentMetadata")
    compressed = root.boolean("compression")
    chunks = _chunk_index(root.object("chunkIndex"))
    if not compressed and encrypted is None and chunks.stored_bytes != chunks.original_bytes:
        raise _FieldError(
            f"chunkIndex: expected {chunks.original_bytes} stored bytes without compression and encryption, "
            f"found {chunks.stored_bytes}"
        )
    return SegmentManifest(
        chunks,
        _indexes(root.object("segmentIndexes")),
        compressed,
        None if encrypted is None else _encryption(encrypted),
        None if metadata is None else _metadata(metadata),
    )


def _refused_constant(name: str) -> None:
    raise ValueError(f"found {name}")


class _Object:
    """A JSON object whose fields are checked when they are read. place: its own field, for errors."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            where = place.rstrip(".") or "document"
            raise _FieldError(f"{where}: expected an object, found {_shown(value)}")
        self.fields: dict[str, Any] = value
        self.place = place

    def _field(self, name: str, kind: type, expected: str) -> Any:
        if name not in self.fields:
            raise _FieldError(f"{self.place}{name}: expected {expected}, found no such field")
        value = self.fields[name]
        if type(value) is not kind:
            raise _FieldError(f"{self.place}{name}: expected {expected}, found {_shown(value)}")
        return value

    def text(self, name: str) -> str:
        found: str = self._field(name, str, "a text")
        return found

    def boolean(self, name: str) -> bool:
        found: bool = self._field(name, bool, "true or false")
        return found

    def integer(self, name: str, least: int = 0, most: int = _MAX_INT) -> int:
        found: int = self._field(name, int, "an integer")
        if not least <= found <= most:
            raise _FieldError(f"{self.place}{name}: expected {least} to {most}, found {_shown(found)}")
        return found

    def base64(self, name: str) -> bytes:
        return _base64(self.text(name), f"{self.place}{name}")

    def object(self, name: str) -> _Object:
        return _Object(self._field(name, dict, "an object"), f"{self.place}{name}.")

    def optional(self, name: str) -> _Object | None:
        return None if self.fields.get(name) is None else self.object(name)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts
        text = "a very large number"
    return text if len(text) <= 40 else f"{text[:40]}..."


def _base64(text: str, place: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _FieldError(f"{place}: not base64: {error}") from None


def _chunk_index(found: _Object) -> ChunkIndex:
    kind = found.text("type")
    chunk_bytes = found.integer("originalChunkSize", least=1)
    original_bytes = found.integer("originalFileSize")
    if kind == "variable":
        sizes = _chunk_sizes(found)
        if original_bytes == 0:
            sizes = ()  # an empty file has one chunk, of no bytes
    elif kind == "fixed":
        count = -(-original_bytes // chunk_bytes)
        if count > _MAX_CHUNKS:
            raise _FieldError(f"chunkIndex: expected at most {_MAX_CHUNKS} chunks, found {count}")
        size, last = found.integer("transformedChunkSize"), found.integer("finalTransformedChunkSize")
        sizes = (*(size for _ in range(count - 1)), last) if count else ()
    else:
        raise _FieldError(f"chunkIndex.type: expected 'fixed' or 'variable', found {_shown(kind)}")
    try:
        return ChunkIndex(chunk_bytes, original_bytes, sizes)
    except ValueError as error:
        raise _FieldError(f"chunkIndex: {error}") from None


def _chunk_sizes(found: _Object) -> tuple[int, ...]:
    from kafkafmt.codecs.zstd_library import zstandard

    place, compressed = "chunkIndex.transformedChunks", found.base64("transformedChunks")
    try:
        size = zstandard.frame_content_size(compressed)
        if not 0 <= size <= _MAX_CODEC_BYTES:
            raise _FieldError(f"{place}: expected 0 to {_MAX_CODEC_BYTES} decompressed bytes, found {size}")
        encoded = zstandard.ZstdDecompressor().decompress(compressed, max_output_size=max(size, 1))
    except zstandard.ZstdError as error:
        raise _FieldError(f"{place}: not valid zstd data: {error}") from None
    try:
        return decode_chunk_sizes(encoded)
    except ValueError as error:
        raise _FieldError(f"{place}: {error}") from None


def decode_chunk_sizes(data: bytes) -> tuple[int, ...]:
    """Decode sizes of chunks. All numbers are big-endian:

    count: 4 bytes. Nothing follows if it is 0, and only the last size if it is 1
    base: 4 bytes
    width: 1 byte, the number of bytes of each size but the last one, from 0 to 4
    sizes: count - 1 times `width` bytes, less `base`
    last size: 4 bytes

    Raises ValueError, which names the position.
    """
    count = _int32(data, 0, "the count")
    if count == 0:
        return _all_read((), data, 4)
    if count == 1:
        return _all_read((_size(_int32(data, 4, "a size"), 4),), data, 8)
    base = _size(_int32(data, 4, "the base"), 4)
    if len(data) < 9:
        raise ValueError("position 8: expected the width, found the end")
    width = data[8]
    if width > 4:
        raise ValueError(f"position 8: expected a width of 0 to 4 bytes, found {width}")
    left = len(data) - 9 - 4
    if count > _MAX_CHUNKS or count < 0 or (count - 1) * width > left:
        raise ValueError(
            f"position 0: expected a count that {max(left, 0)} bytes of sizes allow, found {count}"
        )
    end = 9 + (count - 1) * width
    sizes = [
        _size(base + int.from_bytes(data[at : at + width], "big", signed=width == 4), at)
        for at in (range(9, end, width) if width else [9] * (count - 1))
    ]
    return _all_read((*sizes, _size(_int32(data, end, "the last size"), end)), data, end + 4)


def _int32(data: bytes, position: int, what: str) -> int:
    if len(data) - position < 4:
        raise ValueError(
            f"position {position}: expected {what} in 4 bytes, found {len(data) - position} bytes"
        )
    found: int = struct.unpack_from(">i", data, position)[0]
    return found


def _size(size: int, position: int) -> int:
    if not 0 <= size <= _MAX_INT:
        raise ValueError(f"position {position}: expected a size of 0 to {_MAX_INT}, found {size}")
    return size


def _all_read(sizes: tuple[int, ...], data: bytes, end: int) -> tuple[int, ...]:
    if len(data) != end:
        raise ValueError(f"position {end}: expected the end, found {len(data) - end} more bytes")
    return sizes


def _indexes(found: _Object) -> dict[str, tuple[int, int]]:
    indexes = {}
    for name, suffix in INDEX_SUFFIXES.items():
        if name == _OPTIONAL_INDEX and found.optional(name) is None:
            continue
        index = found.object(name)
        indexes[suffix] = index.integer("position"), index.integer("size")
    return indexes


def _encryption(found: _Object) -> WrappedDataKey:
    text = found.text("dataKey")
    key_id, colon, wrapped = text.partition(":")
    if not colon or not key_id.strip() or not wrapped or ":" in wrapped:
        # The text is not shown: it may be a key that was not wrapped.
        raise _FieldError("encryption.dataKey: expected <key id>:<base64>, found another text")
    return WrappedDataKey(key_id, _base64(wrapped, "encryption.dataKey"), found.base64("aad"))


def _metadata(found: _Object) -> SegmentMetadata:
    segment = found.object("remoteLogSegmentId")
    partition = segment.object("topicIdPartition")
    named = partition.object("topicPartition")
    epochs = found.object("segmentLeaderEpochs")
    try:
        numbers = sorted(map(int, epochs.fields))
    except ValueError:
        raise _FieldError("remoteLogSegmentMetadata.segmentLeaderEpochs: expected epochs as names") from None
    start_offset = found.integer("startOffset", most=_MAX_LONG)
    return SegmentMetadata(
        topic=named.text("topic"),
        topic_id=partition.text("topicId"),
        partition=named.integer("partition"),
        segment_id=segment.text("id"),
        start_offset=start_offset,
        end_offset=found.integer("endOffset", least=start_offset, most=_MAX_LONG),
        event_timestamp_ms=found.integer("eventTimestampMs", least=-1, most=_MAX_LONG),
        leader_epochs=tuple((epoch, epochs.integer(str(epoch), most=_MAX_LONG)) for epoch in numbers),
    )
