"""Manifests of tiered storage: bad bytes raise one error that names object and field, whatever they are."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.tiered.manifest import SegmentManifest, decode_chunk_sizes

NAME = "s3://bucket/orders-AAAAAAAAAAAAAAAAAAAAAA/0/0-A.rsm-manifest"
# The document of `SegmentManifestV1SerdeTest`, a test of the plugin.
METADATA = {
    "remoteLogSegmentId": {
        "topicIdPartition": {
            "topicId": "lZ6vvmajTWKDBUTV6SQAtQ",
            "topicPartition": {"topic": "topic1", "partition": 42},
        },
        "id": "adh9f8BMS4anaUnD8KWfWg",
    },
    "startOffset": 0,
    "endOffset": 1000,
    "maxTimestampMs": 1000000000,
    "brokerId": 2,
    "eventTimestampMs": 2000000000,
    "segmentLeaderEpochs": {"0": 100, "1": 200, "2": 300},
}
DOCUMENT: dict[str, Any] = {
    "version": "1",
    "chunkIndex": {
        "type": "fixed",
        "originalChunkSize": 100,
        "originalFileSize": 1000,
        "transformedChunkSize": 110,
        "finalTransformedChunkSize": 110,
    },
    "segmentIndexes": {
        "offset": {"position": 0, "size": 1},
        "timestamp": {"position": 1, "size": 1},
        "producerSnapshot": {"position": 2, "size": 1},
        "leaderEpoch": {"position": 3, "size": 1},
        "transaction": {"position": 4, "size": 1},
    },
    "compression": True,
    "remoteLogSegmentMetadata": METADATA,
}


def manifest(**changed: Any) -> bytes:
    return json.dumps(DOCUMENT | changed).encode()


def variable(encoded: bytes, *, chunk_size: int, size: int) -> dict[str, Any]:
    chunks = b64encode(zstandard.compress(encoded)).decode()
    return {
        "type": "variable",
        "originalChunkSize": chunk_size,
        "originalFileSize": size,
        "transformedChunks": chunks,
    }


def encode(sizes: list[int], width: int = 4) -> bytes:
    """The codec as its description has it; `base` is the lowest size without the last one."""
    data = len(sizes).to_bytes(4, "big")
    if len(sizes) > 1:
        base = min(sizes[:-1])
        data += base.to_bytes(4, "big") + bytes([width])
        data += b"".join((one - base).to_bytes(width, "big") for one in sizes[:-1])
    return data + (sizes[-1].to_bytes(4, "big") if sizes else b"")


def test_manifest_of_the_plugins_own_test_when_decoded_then_has_all_fields() -> None:
    found = SegmentManifest.decode(manifest(), NAME)
    assert found.chunks.stored_sizes == (110,) * 10
    assert found.indexes[".txnindex"] == (4, 1)
    assert found.encryption is None
    assert found.metadata is not None
    assert found.metadata.leader_epochs == ((0, 100), (1, 200), (2, 300))


def test_manifest_when_it_has_unknown_fields_then_they_are_ignored() -> None:
    assert SegmentManifest.decode(manifest(new=[1]), NAME).chunks.original_bytes == 1000


@given(st.lists(st.integers(0, 2**24), max_size=20))
def test_chunk_sizes_when_encoded_then_are_decoded_as_they_were(sizes: list[int]) -> None:
    assert decode_chunk_sizes(encode(sizes)) == tuple(sizes)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_chunk_sizes_of_each_width_when_decoded_then_are_right(width: int) -> None:
    sizes = [1000, 1000 + 2 ** (8 * width - 2), 1001, 3]
    assert decode_chunk_sizes(encode(sizes, width)) == tuple(sizes)


@given(st.binary(max_size=60))
def test_chunk_sizes_when_of_any_bytes_then_are_decoded_or_the_error_tells_the_position(data: bytes) -> None:
    try:
        sizes = decode_chunk_sizes(data)
    except ValueError as error:
        assert str(error).startswith("position ")  # noqa: PT017
    else:
        assert len(sizes) == int.from_bytes(data[:4], "big")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"chunkIndex": variable(b"\0\0\0\2\0", chunk_size=1, size=2)},
            "transformedChunks: position 4: expected",
        ),
        ({"chunkIndex": variable(encode([1, 2]), chunk_size=1, size=3)}, "chunkIndex: chunks: expected 3"),
        ({"chunkIndex": variable(b"\x7f\xff\xff\xff" + bytes(9), chunk_size=1, size=2)}, "found 2147483647"),
        (
            {"chunkIndex": DOCUMENT["chunkIndex"] | {"originalChunkSize": 0}},
            "originalChunkSize: expected 1 to",
        ),
        ({"chunkIndex": DOCUMENT["chunkIndex"] | {"originalFileSize": 2**31 - 1}}, "at most 2097152 chunks"),
        ({"chunkIndex": DOCUMENT["chunkIndex"] | {"type": "tree"}}, "type: expected 'fixed' or 'variable'"),
        ({"compression": False}, "expected 1000 stored bytes without compression and encryption, found 1100"),
        ({"encryption": {"dataKey": "k", "aad": ""}}, "dataKey: expected <key id>:<base64>"),
        ({"encryption": {"dataKey": "k:?", "aad": ""}}, "dataKey: not base64"),
    ],
)
def test_manifest_when_a_field_is_not_valid_then_the_error_names_it(
    changed: dict[str, Any], message: str
) -> None:
    data = json.dumps(DOCUMENT | changed).replace("100, ", "1, ", 1 if "2097152" in message else 0).encode()
    with pytest.raises(StoredObjectError) as raised:
        SegmentManifest.decode(data, NAME)
    assert str(raised.value).startswith(f"{NAME}: not a valid segment manifest: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"version": "1"',
        b"null",
        b'{"version": NaN}',
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_bytes_that_are_no_manifest_when_decoded_then_raise_the_one_error(data: bytes) -> None:
    with pytest.raises(StoredObjectError, match="not a valid segment manifest"):
        SegmentManifest.decode(data, NAME)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def paths_of(document: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in document.items():
        found.append((*above, name))
        if isinstance(value, dict):
            found += paths_of(value, (*above, name))
    return found


@given(st.sampled_from(paths_of(DOCUMENT)), _JSON)
def test_manifest_when_any_field_has_any_value_then_is_decoded_or_raises_the_one_error(
    path: tuple[str, ...], value: object
) -> None:
    document = json.loads(manifest())
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    data = json.dumps(document).encode("utf-8", "surrogatepass")
    try:
        found = SegmentManifest.decode(data, NAME)
    except StoredObjectError as error:
        assert str(error).startswith(NAME)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert len(found.chunks.stored_sizes) * found.chunks.chunk_bytes >= found.chunks.original_bytes


@given(st.data())
def test_manifest_when_a_byte_is_changed_or_cut_then_is_decoded_or_raises_the_one_error(
    data: st.DataObject,
) -> None:
    encoded = bytearray(manifest(chunkIndex=variable(encode([60, 61, 3]), chunk_size=100, size=250)))
    position = data.draw(st.integers(0, len(encoded) - 1))
    if data.draw(st.booleans()):
        encoded[position] = data.draw(st.integers(0, 255))
    else:
        del encoded[position:]
    try:
        SegmentManifest.decode(bytes(encoded), NAME)
    except StoredObjectError as error:
        assert str(error).startswith(NAME)  # noqa: PT017
