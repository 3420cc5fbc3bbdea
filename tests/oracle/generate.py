"""Random batches to hold kafkafmt against Kafka with: specs as `oracle.kafka` builds them.

Each draws from what the formats allow and from what brokers, compaction and old clients leave behind: gaps,
offsets past 32 bits, timestamps that go backwards or are missing, log-append time by builder or stamped over a
finished batch, idempotent and transactional batches whose sequences wrap, markers, empty batches, horizons.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

INT32_MAX = 2**31 - 1
NOW_MS = 1_700_000_000_000
HEADER_KEYS = ("h", "trace", "", "ключ-ø-鍵", "x" * 130)

Spec = dict[str, Any]


class Family(NamedTuple):
    """Batches of one format and one codec."""

    magic: int
    codec: int

    def __str__(self) -> str:
        return f"v{self.magic}-{('none', 'gzip', 'snappy', 'lz4', 'zstd')[self.codec]}"


FAMILIES = [Family(magic, codec) for magic in (0, 1, 2) for codec in range(4 if magic < 2 else 5)]


@dataclass
class BatchGenerator:
    """Batches one after another, as in a log: each begins past the end of the one before it."""

    random: Random
    next_offset: int = 0

    def batch(self, family: Family) -> Spec:
        r = self.random
        spec: Spec = {"op": "build", "magic": family.magic, "codec": family.codec}
        spec["base_offset"] = self.next_offset
        if family.magic == 2:
            self._add_version_2_fields(spec)
        if family.magic > 0 and r.random() < 0.2:
            spec |= {"timestamp_type": 1, "log_append_time": NOW_MS + r.randrange(10**9)}
        if spec.get("is_empty"):
            spec["records"] = []
        elif spec.get("is_control"):
            spec["records"] = [self._marker()]
        else:
            spec["records"] = self._records(family.magic, gaps=r.random() < 0.4)
        last = spec["records"][-1]["offset"] if spec["records"] else self.next_offset + r.randrange(50)
        if family.magic == 2 and (spec.get("is_empty") or r.random() < 0.2):
            last += r.choice((0, 1, 30))
            spec["last_offset"] = last
        self.next_offset = last + 1 + r.choice((0, 0, 0, 0, 1, 100, 2**33))
        return spec

    def _add_version_2_fields(self, spec: Spec) -> None:
        r = self.random
        spec["partition_leader_epoch"] = r.choice((-1, 0, 7, INT32_MAX))
        kind = r.choice(("plain", "plain", "idempotent", "transactional", "control", "empty"))
        if kind != "plain":
            base_sequence = r.choice((0, 1, 1000, INT32_MAX, INT32_MAX - 2))
            spec |= {"producer_id": r.choice((0, 5, 2**40)), "producer_epoch": r.randrange(2**15)}
            spec["base_sequence"] = -1 if kind == "control" else base_sequence
        spec["is_transactional"] = kind in ("transactional", "control") or (
            kind == "empty" and r.random() < 0.5
        )
        spec["is_control"] = kind == "control" or (kind == "empty" and r.random() < 0.2)
        spec["is_empty"] = kind == "empty"
        if spec["is_empty"] or spec["is_control"]:
            spec["codec"] = 0
        elif r.random() < 0.15:
            spec["stamp_log_append_time"] = NOW_MS + r.randrange(10**6)
        if not spec["is_empty"] and r.random() < 0.15:
            spec["delete_horizon_ms"] = NOW_MS + r.randrange(-(10**9), 10**9)

    def _marker(self) -> Spec:
        r = self.random
        marker = r.choice(("COMMIT", "ABORT"))
        timestamp = NOW_MS + r.randrange(1000)
        epoch = r.randrange(100)
        return {
            "offset": self.next_offset,
            "timestamp": timestamp,
            "marker": marker,
            "coordinator_epoch": epoch,
        }

    def _records(self, magic: int, *, gaps: bool) -> list[Spec]:
        r = self.random
        records, offset = [], self.next_offset + (r.randrange(4) if gaps else 0)
        for _ in range(r.choice((1, 1, 2, 3, 5, 8, 13, 60))):
            record: Spec = {"offset": offset, "timestamp": self._timestamp()}
            record |= {"key": self._bytes(20), "value": self._bytes(200)}
            if magic == 2 and r.random() < 0.4:
                record["headers"] = [
                    [r.choice(HEADER_KEYS), self._bytes(12)] for _ in range(r.choice((1, 2, 2, 70)))
                ]
            records.append(record)
            offset += r.choice((1, 2, 5, 1000, 2**22)) if gaps else 1
        return records

    def _timestamp(self) -> int:
        r = self.random
        usual = NOW_MS + r.randrange(-1000, 1000)
        return usual if r.random() < 0.9 else r.choice((-1, 0, 1, usual - 2**33, usual + 2**35))

    def _bytes(self, about: int) -> bytes | None:
        r = self.random
        kind = r.random()
        if kind < 0.1:
            return None
        if kind < 0.2:
            return b""
        size = r.randrange(1, about) if kind < 0.98 else about * 40
        return r.randbytes(size) if kind < 0.4 else (b"%d " % size * size)[:size]
