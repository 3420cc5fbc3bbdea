"""Logs with damage of every kind, and a plain oracle: what a repair must keep, byte by byte.

The oracle shares no code with the library. It reads batches by `reference.py`, and finds those of the sound log in the
damaged files by a search for their bytes.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import kafkafmt as kf
import reference
from kafkafmt.jobs.repair import PartitionReport
from kafkafmt.log import SegmentWriter
from kafkafmt.log.partition_metadata import write_topic_id

TOPIC_ID = uuid.UUID(int=7)
NOW = 1_700_000_000_000
_LENGTH, _EPOCH, _MAGIC = slice(8, 12), slice(12, 16), 16


@dataclass
class DamagedLog:
    """A partition's folder. batches: all that were written, by first and last offset. done: the damage.

    is_silent: batches may be missing without a trace in the bytes.
    """

    folder: Path
    batches: dict[tuple[int, int], bytes] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    is_silent: bool = False


def make_log(folder: Path, rng: random.Random, *, most_epoch: int = 9) -> DamagedLog:
    """A log of a few segments, with producers, transactions, leader epochs, codecs and gaps, as a broker keeps it.

    most_epoch: the highest leader epoch. A cluster in which the log is put has at least this epoch.
    """
    made = DamagedLog(folder)
    offset, epoch, sequence = rng.choice([0, 0, 500]), min(rng.randrange(3), most_epoch), 0
    is_open, epochs = False, list[tuple[int, int]]()
    for _ in range(rng.randrange(2, 5)):
        with SegmentWriter(folder, offset) as writer:
            for _ in range(rng.randrange(2, 9)):
                epoch = min(epoch + (rng.random() < 0.1), most_epoch)
                if not epochs or epochs[-1][0] != epoch:
                    epochs.append((epoch, offset))
                kind = rng.choice(["plain", "plain", "idempotent", "transactional"])
                if is_open and kind == "transactional" and rng.random() < 0.7:
                    data = _marker(offset, commit=rng.random() < 0.5)
                    count, is_open = 1, False
                else:
                    count = rng.randrange(1, 6)
                    fields = {}
                    if kind == "transactional":
                        fields = {"producer_id": 9, "producer_epoch": 0, "base_sequence": sequence}
                        sequence, is_open = sequence + count, True
                    elif kind == "idempotent":
                        fields = {"producer_id": 1000 + offset, "producer_epoch": 0, "base_sequence": 0}
                    data = _batch(offset, count, rng, is_transactional=kind == "transactional", **fields)
                data[_EPOCH] = struct.pack(">i", epoch)  # outside the CRC
                writer.append(bytes(data))
                made.batches[offset, offset + count - 1] = bytes(data)
                offset += count + (rng.randrange(1, 4) if rng.random() < 0.05 else 0)
    text = "".join(f"{one} {start}\n" for one, start in epochs)
    (folder / "leader-epoch-checkpoint").write_text(f"0\n{len(epochs)}\n{text}")
    write_topic_id(folder, TOPIC_ID)
    return made


def _batch(offset: int, count: int, rng: random.Random, **fields: object) -> bytearray:
    codec = rng.choice(list(kf.Codec))
    builder = kf.RecordBatchBuilder(codec=codec, base_offset=offset, **fields)  # type: ignore[arg-type]
    for number in range(offset, offset + count):
        builder.append(NOW + number, b"key-%d" % number, rng.randbytes(rng.randrange(60)))
    return bytearray(builder.build())


def _marker(offset: int, *, commit: bool) -> bytearray:
    builder = kf.RecordBatchBuilder(
        base_offset=offset, producer_id=9, producer_epoch=0, is_transactional=True, is_control=True
    )
    builder.append_end_transaction_marker(NOW + offset, commit=commit)
    return bytearray(builder.build())


def _segments(log: DamagedLog) -> list[Path]:
    return sorted(log.folder.glob("*.log"))


def _split(path: Path) -> list[bytes]:
    """The batches of a file that is still sound."""
    return [batch.data for batch in reference.read(path.read_bytes())]


def _edit(
    change: Callable[[bytearray, random.Random], object],
) -> Callable[[DamagedLog, random.Random], None]:
    """Damage the bytes of some segment."""

    def damage(log: DamagedLog, rng: random.Random) -> None:
        path = rng.choice([path for path in _segments(log) if path.stat().st_size > 100] or _segments(log))
        data = bytearray(path.read_bytes())
        if len(data) > 100:
            change(data, rng)
        path.write_bytes(data)

    return damage


def _flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _flips(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randrange(2, 9)):
        _flip(data, rng)


def _zeros(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.randrange(1, 400))
    data[start:stop] = bytes(stop - start)


def _insert(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    data[place:place] = rng.randbytes(rng.randrange(1, 200))


def _cut(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randrange(1, 300)]


def _header(data: bytearray, rng: random.Random, change: Callable[[bytearray], None]) -> None:
    """Change the header of a batch, if one can be found."""
    starts, position = [], 0
    while position + 61 <= len(data):
        starts.append(position)
        position += 12 + max(int.from_bytes(data[position + 8 : position + 12], "big"), 49)
    start = rng.choice(starts)
    header = data[start : start + 61]
    change(header)
    data[start : start + 61] = header


def _length(data: bytearray, rng: random.Random) -> None:
    value = rng.choice([0, 1, -1, 49, rng.randrange(2**31), 2**31 - 1])
    _header(data, rng, lambda header: header.__setitem__(_LENGTH, struct.pack(">i", value)))


def _magic(data: bytearray, rng: random.Random) -> None:
    value = rng.choice([0, 1, 3, 255])
    _header(data, rng, lambda header: header.__setitem__(_MAGIC, value))


def _base_offset(data: bytearray, rng: random.Random) -> None:
    byte, bit = rng.randrange(8), 1 << rng.randrange(8)
    _header(data, rng, lambda header: header.__setitem__(byte, header[byte] ^ bit))


def _of_batches(
    change: Callable[[list[bytes], random.Random], None], *, is_silent: bool = False
) -> Callable[[DamagedLog, random.Random], None]:
    """Change the order of whole batches in a segment."""

    def damage(log: DamagedLog, rng: random.Random) -> None:
        path = rng.choice(_segments(log))
        try:
            batches = _split(path)
        except reference.Damaged:
            return
        if len(batches) > 2 and sum(map(len, batches)) == path.stat().st_size:
            change(batches, rng)
            path.write_bytes(b"".join(batches))
            log.is_silent |= is_silent

    return damage


def _swap(batches: list[bytes], rng: random.Random) -> None:
    number = rng.randrange(len(batches) - 1)
    batches[number], batches[number + 1] = batches[number + 1], batches[number]


def _duplicate(batches: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(batches))
    stop = rng.randrange(start + 1, len(batches) + 1)
    batches[stop:stop] = batches[start:stop]


def _cut_batches(batches: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(batches))
    del batches[start : start + rng.randrange(1, 3)]


def _truncate(log: DamagedLog, rng: random.Random) -> None:
    path = _segments(log)[-1] if rng.random() < 0.7 else rng.choice(_segments(log))
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])
    log.is_silent = True


def _torn_tail(log: DamagedLog, rng: random.Random) -> None:
    path = _segments(log)[-1]
    path.write_bytes(
        path.read_bytes() + rng.choice([bytes(200), _batch(10**6, 3, rng)[:-5], rng.randbytes(70)])
    )


def _empty(log: DamagedLog, rng: random.Random) -> None:
    rng.choice(_segments(log)).write_bytes(b"")
    log.is_silent = True


def _missing(log: DamagedLog, rng: random.Random) -> None:
    if len(_segments(log)) > 1:
        rng.choice(_segments(log)).unlink()
        log.is_silent = True


def _wrong_name(log: DamagedLog, rng: random.Random) -> None:
    path = rng.choice(_segments(log))
    base = rng.choice([int(path.stem) + 1, int(path.stem) + 10_000, 3, 10**15])
    target = path.with_name(f"{base:020d}.log")
    if not target.exists():
        path.rename(target)


def _beside(suffix: str) -> Callable[[DamagedLog, random.Random], None]:
    """Delete a file beside the segments, or fill it with garbage."""

    def damage(log: DamagedLog, rng: random.Random) -> None:
        paths = sorted(log.folder.glob(f"*{suffix}"))
        path = rng.choice(paths) if paths else log.folder / f"{0:020d}{suffix}"
        if rng.random() < 0.4:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(rng.randbytes(rng.randrange(300)))

    return damage


def _foreign(log: DamagedLog, rng: random.Random) -> None:
    name = rng.choice(
        ["notes.txt", "garbage.log", "x.index", "core", "00000000000000000009.log.deleted", ".hidden"]
    )
    (log.folder / name).write_bytes(rng.randbytes(100))


DAMAGE: dict[str, Callable[[DamagedLog, random.Random], None]] = {
    "flip": _edit(_flip),
    "flips": _edit(_flips),
    "zeros": _edit(_zeros),
    "inserted bytes": _edit(_insert),
    "cut bytes": _edit(_cut),
    "length": _edit(_length),
    "magic": _edit(_magic),
    "base offset": _edit(_base_offset),
    "swapped batches": _of_batches(_swap),
    "duplicated batches": _of_batches(_duplicate),
    "cut batches": _of_batches(_cut_batches, is_silent=True),
    "truncated": _truncate,
    "torn tail": _torn_tail,
    "empty segment": _empty,
    "missing segment": _missing,
    "wrong name": _wrong_name,
    "index": _beside(".index"),
    "time index": _beside(".timeindex"),
    "transaction index": _beside(".txnindex"),
    "snapshot": _beside(".snapshot"),
    "leader epochs": _beside("leader-epoch-checkpoint"),
    "topic id": _beside("partition.metadata"),
    "foreign file": _foreign,
}
# What may leave no trace of a batch: a cut between batches, or an altered header in another place.
_SILENT = {"torn tail", "cut bytes", "swapped batches", "base offset"}


def damage(log: DamagedLog, rng: random.Random) -> None:
    """Damage a log in one to three ways."""
    for name in rng.sample(sorted(DAMAGE), rng.randrange(1, 4)):
        DAMAGE[name](log, rng)
        log.done.append(name)


def damaged_log(folder: Path, seed: object) -> DamagedLog:
    """A log with the damage of a seed."""
    rng = random.Random(str(seed))
    log = make_log(folder, rng)
    damage(log, rng)
    return log


def assert_repaired(log: DamagedLog, sources: list[bytes], target: Path, report: PartitionReport) -> None:
    """Check a repaired folder against the batches that are still in the bytes of the damaged files, `sources`."""
    where = f"{log.folder}: {log.done}"
    segments = sorted(target.glob("*.log"))
    kept = [(path, batch) for path in segments for batch in reference.read(path.read_bytes())]
    assert sum(len(batch.data) for _, batch in kept) == sum(path.stat().st_size for path in segments), where
    reached = -1
    for path, batch in kept:
        first = batch.fields["base_offset"]
        assert batch.crc_holds, where
        assert max(reached, int(path.stem) - 1) < first <= batch.last_offset, where
        assert any(batch.data in source for source in sources), where
        reached = batch.last_offset
    bases = [int(path.stem) for path in segments]
    assert bases == sorted(set(bases)), where
    there = {batch.data for _, batch in kept}
    sound = {span for span, data in log.batches.items() if any(data in source for source in sources)}
    missing = {span for span in sound if log.batches[span] not in there}
    if {"base offset", "flip", "flips"} & {*log.done}:
        # A changed base offset may contradict one sound batch, and it is one against one.
        altered = [one for _, one in kept if one.data not in log.batches.values()]
        missing = {span for span in missing if not any(_meet(span, one) for one in altered)}
        if "wrong name" in log.done and len(missing) == 1:
            missing = set()  # neither the name of the segment nor its other batches decide
    assert not missing, f"{where}: sound, but not kept: {sorted(missing)}"
    assert report.batches == len(kept), where
    assert report.records == sum(batch.fields["count"] for _, batch in kept), where
    assert report.size_in_bytes == sum(len(batch.data) for _, batch in kept), where
    if kept:
        offsets = kept[0][1].fields["base_offset"], kept[-1][1].last_offset
        assert (report.first_offset, report.last_offset) == offsets, where
    _assert_losses(log, report, kept, there, where)


def _meet(span: tuple[int, int], batch: reference.Batch) -> bool:
    return span[0] <= batch.last_offset and batch.fields["base_offset"] <= span[1]


def _assert_losses(
    log: DamagedLog,
    report: PartitionReport,
    kept: list[tuple[Path, reference.Batch]],
    there: set[bytes],
    where: str,
) -> None:
    """What is reported lost is not there, and what is not there is reported."""
    offsets = {offset for _, one in kept for offset in range(one.fields["base_offset"], one.last_offset + 1)}
    lost = [one for one in report.lost if one.is_lost]
    for one in lost:
        if one.first_offset is not None:
            assert not {one.first_offset, one.last_offset} & offsets, f"{where}: {one}"
    if log.is_silent or any(one.first_offset is None for one in lost) or _SILENT & {*log.done}:
        return
    if there - {*log.batches.values()}:
        return  # an altered base offset that nothing contradicts
    end = max(offsets, default=-1)
    for (first, last), data in log.batches.items():
        if data not in there and not {*range(first, last + 1)} <= offsets:
            told = any(one.first_offset <= last and first <= one.last_offset for one in lost)  # type: ignore[operator]
            # At the end of a log, what comes after damage is unknown.
            assert told or (report.lost and first > end), f"{where}: {first} to {last}: {lost}"
