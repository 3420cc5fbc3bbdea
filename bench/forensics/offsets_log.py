"""The input: a segment of `__consumer_offsets`, as the coordinator of a busy cluster writes it. Always the same bytes.

- A batch has 1 to 50 records, without compression: the partitions of one commit, or a group's metadata alone.
- 98 of 100 batches are commits: OffsetCommitKey version 1, OffsetCommitValue version 3. The others are GroupMetadata.
- 200 groups consume up to 24 partitions of up to 3 topics each, which makes some thousands of keys.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path

from bench import BUILD
from bench.segments import StoredSegment, repeated
from kafkafmt import RecordBatchBuilder

GENERATION = 1  # to be raised with every change of what is generated
MIB = 1024 * 1024
UNIT_BYTES = 64 * MIB  # beyond the caches; larger segments repeat it, with offsets that continue

_FIRST_TIMESTAMP = 1_700_000_000_000
_GROUPS = 200
_NAMES = ("orders", "payments", "page-views", "inventory-changes", "shipping.events", "customer-profiles")
_METADATA_SHARE = 0.02


@dataclass(frozen=True)
class Group:
    """A consumer group: its name, its members, and the keys and positions of its partitions."""

    name: str
    members: int
    keys: list[bytes]
    offsets: list[int]


def stored_offsets_log(size_in_bytes: int) -> StoredSegment:
    """Return a segment of about `size_in_bytes`, a multiple of `UNIT_BYTES`, made first if it is absent.

    It is the only file of a partition folder `__consumer_offsets-7`.
    """
    copies = max(1, round(size_in_bytes / UNIT_BYTES))
    folder = BUILD / "forensics" / f"{GENERATION}-{copies}" / "__consumer_offsets-7"
    path = folder / "00000000000000000000.log"
    facts = folder.parent / "facts.json"
    if not facts.exists():
        folder.mkdir(parents=True, exist_ok=True)
        facts.write_text(json.dumps(_write_unit(path) if copies == 1 else _write_copies(copies, path)))
    return StoredSegment(path, **json.loads(facts.read_text()))


def _write_copies(copies: int, path: Path) -> dict[str, int]:
    unit = stored_offsets_log(UNIT_BYTES)
    size = repeated(unit, copies, path)
    return _facts(unit.records * copies, unit.batches * copies, size)


def _write_unit(path: Path) -> dict[str, int]:
    chosen = random.Random(GENERATION)
    groups = [_group(chosen, number) for number in range(_GROUPS)]
    records = batches = 0
    with path.open("wb") as file:
        while file.tell() < UNIT_BYTES:
            builder = RecordBatchBuilder(base_offset=records, partition_leader_epoch=4)
            timestamp = _FIRST_TIMESTAMP + batches * 7
            for key, value in _batch(chosen, chosen.choice(groups), timestamp):
                builder.append(timestamp, key, value)
            file.write(builder.build())
            records += len(builder)
            batches += 1
        return _facts(records, batches, file.tell())


def _facts(records: int, batches: int, size: int) -> dict[str, int]:
    return {"records": records, "batches": batches, "size_in_bytes": size, "raw_bytes": size}


def _group(chosen: random.Random, number: int) -> Group:
    name = f"{chosen.choice(_NAMES)}-consumer-{number:03}"
    topics = chosen.sample(_NAMES, chosen.randint(1, 3))
    keys = [
        struct.pack(">h", 1) + _string(name) + _string(topic) + struct.pack(">i", partition)
        for topic in topics
        for partition in range(chosen.randint(1, 24))
    ]
    return Group(name, chosen.randint(1, 6), keys, [chosen.randrange(10**6) for _ in keys])


def _batch(chosen: random.Random, group: Group, timestamp: int) -> list[tuple[bytes, bytes]]:
    if chosen.random() < _METADATA_SHARE:
        return [(struct.pack(">h", 2) + _string(group.name), _group_metadata(chosen, group, timestamp))]
    count = min(chosen.randint(1, 50), len(group.keys))
    records = []
    for number in chosen.sample(range(len(group.keys)), count):
        group.offsets[number] += chosen.randrange(2000)
        value = struct.pack(">hqi", 3, group.offsets[number], 11) + _string("") + struct.pack(">q", timestamp)
        records.append((group.keys[number], value))
    return records


def _group_metadata(chosen: random.Random, group: Group, timestamp: int) -> bytes:
    members = b"".join(_member(chosen, group, number) for number in range(group.members))
    leader = f"{group.name}-1-{'0' * 12}"
    return (
        struct.pack(">h", 3)
        + _string("consumer")
        + struct.pack(">i", chosen.randrange(500))
        + _string("range")
        + _string(leader)
        + struct.pack(">q", timestamp)
        + struct.pack(">i", group.members)
        + members
    )


def _member(chosen: random.Random, group: Group, number: int) -> bytes:
    client = f"{group.name}-{number}"
    return (
        _string(f"{client}-{chosen.getrandbits(128):032x}")
        + struct.pack(">h", -1)
        + _string(client)
        + _string(f"/10.20.{number}.{chosen.randrange(256)}")
        + struct.pack(">ii", 300_000, 45_000)
        + _bytes(chosen.randbytes(40))
        + _bytes(chosen.randbytes(120))
    )


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data
