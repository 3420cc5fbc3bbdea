"""The manifest of a backup: what is written is read back, and what is malformed is one error that names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kafkafmt import codecs
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.manifest import (
    BackedUpPartition,
    BackedUpSegment,
    BackedUpTopic,
    GroupOffset,
    Manifest,
    OpenTransaction,
    StoredFile,
    WrappedKey,
)
from kafkafmt.types import Codec

NAME = f"{2:020}-0123abcd"
PATH = f"s3://bucket/generations/{NAME}.json.zst"
TOPIC_ID = "3ed258e0-7b91-437c-bb64-1173c4d9520a"


def segment(base_offset: int, next_offset: int) -> BackedUpSegment:
    log = StoredFile(150, 220, "a" * 64, 100, (128, 92))
    index = StoredFile(8, 36, "b" * 64, 100, (36,))
    name = f"segments/orders/{TOPIC_ID}/0/{base_offset:020}-{'c' * 32}"
    return BackedUpSegment(
        name,
        base_offset,
        next_offset,
        1_700_000_000_000,
        {".log": log, ".index": index},
        ((0, base_offset), (3, base_offset + 1)),
        "zstd",
        WrappedKey("main", b"\0\xff" * 30),
    )


MANIFEST = Manifest(
    number=2,
    name=NAME,
    parent=f"{1:020}-ffffffff",
    source="a cluster",
    created_ms=1_700_000_000_000,
    writer="a run",
    topics=(
        BackedUpTopic("empty", None, 3, {}),
        BackedUpTopic(
            "orders",
            TOPIC_ID,
            1,
            {"retention.ms": "-1"},
            (BackedUpPartition(0, 5, 25, (segment(0, 10), segment(12, 20))),),
        ),
    ),
    groups={"readers": (GroupOffset("orders", 0, 7, 3, "\u00e4"),), "none": ()},
    groups_at_ms=1_699_999_999_999,
    open_transactions=(OpenTransaction("orders", 0, 9, 1, 15, None),),
)


def content() -> Any:
    return json.loads(codecs.decompress(Codec.ZSTD, MANIFEST.encode()))


def encoded(value: object) -> bytes:
    return bytes(codecs.compress(Codec.ZSTD, json.dumps(value).encode()))


def fields(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values."""
    if where:
        yield where
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, one in children:
        yield from fields(one, (*where, key))


def replaced(where: tuple[Any, ...], value: object) -> bytes:
    found = content()
    holder = found
    for key in where[:-1]:
        holder = holder[key]
    holder[where[-1]] = value
    return encoded(found)


def test_manifest_when_encoded_then_the_same_is_decoded() -> None:
    assert Manifest.decode(MANIFEST.encode(), PATH) == MANIFEST


def test_manifest_when_a_reader_would_refuse_its_size_then_it_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkafmt.storage.backups.manifest._MOST_JSON_BYTES", 1000)
    with pytest.raises(
        BackupError, match=rf"^{NAME}: expected a manifest of at most 1000 bytes of JSON, found \d+:"
    ):
        MANIFEST.encode()


def test_manifest_when_it_has_unknown_fields_then_they_are_ignored() -> None:
    found = content() | {"later": {"field": 1}}
    found["topics"][1]["partitions"][0]["segments"][0]["later"] = None
    assert Manifest.decode(encoded(found), PATH) == MANIFEST


def test_manifest_when_any_field_is_of_another_type_then_the_error_names_the_object_and_the_field() -> None:
    free = {"metadata", "source", "writer", "retention.ms", "key_id", "transactional_id"}  # any text is valid
    for where in fields(content()):
        for wrong in (1.5, True, "\ud800", [None], {"\ud800": 1}):
            with pytest.raises(BackupError) as raised:
                Manifest.decode(replaced(where, wrong), PATH)
            assert str(raised.value).startswith(f"{PATH}: ")
            assert "expected" in str(raised.value)
            names = [key for key in where if isinstance(key, str)]
            assert any(f"{name}" in str(raised.value) for name in names), where
            assert "\n" not in str(raised.value)
        if where[-1] not in free:
            with pytest.raises(BackupError):
                Manifest.decode(replaced(where, "wrong \x00"), PATH)


def test_manifest_when_a_required_field_is_missing_then_the_error_says_so() -> None:
    for where in fields(content()):
        if not isinstance(where[-1], str) or where[-2:-1] in (("configs",), ("groups",), ("files",)):
            continue
        found = content()
        holder = found
        for key in where[:-1]:
            holder = holder[key]
        del holder[where[-1]]
        with pytest.raises(BackupError, match="found nothing"):
            Manifest.decode(encoded(found), PATH)


def test_manifest_when_cut_anywhere_then_is_refused() -> None:
    data = MANIFEST.encode()
    for end in range(len(data)):
        with pytest.raises(BackupError, match="generations/"):
            Manifest.decode(data[:end], PATH)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("version",), 2, "version: expected 1, the latest format"),
        (("number",), 3, "name: expected 3 in 20 digits"),
        (("parent",), NAME, "parent: expected the name of an earlier generation"),
        (("topics", 0, "name"), "a/b", r"topics\[0\].name: expected the name of a topic"),
        (("topics", 0, "name"), "orders", "topics: expected each topic once"),
        (("topics", 1, "partition_count"), 0, r"partitions\[0\].partition: expected an integer from 0 to -1"),
    ],
)
def test_manifest_when_a_value_contradicts_another_then_is_refused(
    where: tuple[Any, ...], value: object, message: str
) -> None:
    with pytest.raises(BackupError, match=message):
        Manifest.decode(replaced(where, value), PATH)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"object": "segments/orders/none/0/../../../secret"}, "the path of a segment with base offset 0"),
        ({"base_offset": 1}, "the path of a segment with base offset 1"),
        ({"next_offset": 13}, "base offset 12 at 13 or later"),
        ({"compression": "gzip"}, "none or zstd"),
        ({"leader_epochs": ((3, 0), (1, 5))}, "in ascending order"),
        ({"files": {}}, ".log among them"),
        ({"files": {".log": StoredFile(150, 150, "a" * 64)}}, "null, as a file has no chunks|no chunks"),
        ({"files": {".log": StoredFile(150, 220, "a" * 64, 100, (220,))}}, "the sizes of 2 chunks"),
        ({"files": {".log": StoredFile(150, 9, "a" * 64, 100, (5, 5))}}, "the size of all chunks"),
        ({"files": {".log": StoredFile(150, 220, "A" * 64, 100, (128, 92))}}, "64 hex digits"),
    ],
)
def test_manifest_when_a_segment_is_wrong_then_it_is_not_even_written(
    change: dict[str, Any], message: str
) -> None:
    topic = MANIFEST.topics[1]
    (partition,) = topic.partitions
    segments = (replace(partition.segments[0], **change), partition.segments[1])
    wrong = replace(MANIFEST, topics=(replace(topic, partitions=(replace(partition, segments=segments),)),))
    with pytest.raises(BackupError, match=message):
        wrong.encode()
