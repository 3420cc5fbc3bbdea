"""The rows of the table: what is measured, on what, against whom, and the target, each a ratio within one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.peers.names import AIOKAFKA, FLOOR, JAVA, KAFKA_PYTHON, OURS
from bench.segments import ONE_RECORD, Segment
from kafkafmt import Codec


@dataclass(frozen=True)
class Unit:
    """What a rate counts: `fact` of the stored segment, divided by `scale`."""

    text: str
    fact: str
    scale: float


RECORDS = Unit("M rec/s", "records", 1e6)
BATCHES = Unit("M batches/s", "batches", 1e6)
RAW_MEGABYTES = Unit("MB/s raw", "raw_bytes", 1e6)
GIGABYTES = Unit("GB/s", "size_in_bytes", 1e9)


@dataclass(frozen=True)
class Target:
    """Ours is to be at least `least` times as fast as `against`; without that, `least` in the row's unit."""

    least: float
    against: str | None = None

    def __str__(self) -> str:
        return f">= {self.least:.3g}x {self.against}" if self.against else f">= {self.least:.3g}"


@dataclass(frozen=True)
class Row:
    """works: by contender the works that stand for it; the fastest of them counts."""

    name: str
    unit: Unit
    segment: Segment
    works: Mapping[str, tuple[str, ...]]
    floor_name: str = ""
    targets: tuple[Target, ...] = ()
    copies: int = 1


PLAIN_100, PLAIN_1024 = Segment(), Segment(value_size=1024)
SINGLE_100 = Segment(batch_bytes=ONE_RECORD)


def _plain_conversion() -> list[Row]:
    """The fastest way of each, then both all at once, then ours with CRCs checked, which Kafka leaves out."""
    rows = []
    for segment, name, unit, least in (
        (PLAIN_100, "100 B", RECORDS, 8),
        (PLAIN_1024, "1 KiB", GIGABYTES, 2.2),
        (SINGLE_100, "one-record batches, 100 B", RECORDS, 6),
    ):
        java = ("convert_lazily", "convert")
        for suffix, ours, theirs, targets in (
            ("", java, java, (Target(least, JAVA),)),
            (", all at once", ("convert",), ("convert",), ()),
            (", CRC checked first", ("convert_lazily_verified",), java, ()),
        ):
            works = {OURS: ours, JAVA: theirs, FLOOR: ("memcpy",)}
            rows.append(Row(f"v2 -> v1, no codec, {name}{suffix}", unit, segment, works, "memcpy", targets))
        works = {OURS: ("convert_lazily_owned",), FLOOR: ("convert_lazily_shared",)}
        label = f"v2 -> v1, no codec, {name}, each chunk owns its bytes"
        rows.append(Row(label, unit, segment, works, "shared", (Target(0.7, FLOOR),)))
    return rows


def _compressed_conversion() -> list[Row]:
    rows = []
    for codec, least in ((Codec.LZ4, 1.25), (Codec.SNAPPY, 1.3), (Codec.GZIP, 5)):
        for value_size, name in ((100, "100 B"), (1024, "1 KiB")):
            ours = ("convert_lazily_verified", "convert_verified")
            works = {OURS: ours, JAVA: ("convert_lazily",), FLOOR: ("codec",)}
            targets = (Target(0.9, FLOOR), Target(least, JAVA))
            segment = Segment(codec, value_size)
            label = f"v2 -> v1, {codec.name.lower()}, {name}"
            rows.append(Row(label, RAW_MEGABYTES, segment, works, "codec", targets))
    return rows


def _decoding() -> list[Row]:
    """Chunk by chunk, as the peers go record by record and keep none; and all at once, which keeps all."""
    peers = {AIOKAFKA: ("iterate",), KAFKA_PYTHON: ("iterate",), JAVA: ("walk",)}
    crc = {FLOOR: ("check",)}
    rows = []
    for segment, name, of_numpy, of_views in (
        (PLAIN_100, "100 B", (Target(10, AIOKAFKA), Target(1.5, JAVA)), ()),
        (PLAIN_1024, "1 KiB", (), (Target(10, AIOKAFKA), Target(1 / 1.3, FLOOR))),
    ):
        for kind, work, targets in (
            ("numpy", "numpy_batches", of_numpy),
            ("numpy, all at once", "numpy_all", ()),
            ("Arrow", "arrow_batches", ()),
            ("Arrow, all at once", "arrow_all", ()),
            ("Arrow, views of keys and values", "arrow_views", of_views),
        ):
            works = {OURS: (work,), **peers, **crc}
            rows.append(Row(f"decode {name} to {kind}", RECORDS, segment, works, "CRC alone", targets))
    unverified = {FLOOR: ("numpy_batches_unverified",)}
    for value_size, name in ((100, "100 B"), (1024, "1 KiB")):
        works = {OURS: ("numpy_batches",), **peers, **unverified}
        segment = Segment(Codec.LZ4, value_size, magic=1)
        label = f"decode {name} in v1 wrappers, lz4, to numpy"
        rows.append(Row(label, RECORDS, segment, works, "CRCs not checked", (Target(0.8, FLOOR),)))
    iterated = {OURS: ("iterate",), **peers}
    rows.append(
        Row("iterate Record objects, 100 B", RECORDS, PLAIN_100, iterated, targets=(Target(2, AIOKAFKA),))
    )
    return rows


def _scanning() -> list[Row]:
    java = {JAVA: ("shallow",)}
    crc = {OURS: ("check",), FLOOR: ("isal_crc",)}
    least = (Target(0.8, FLOOR),)
    return [
        Row(
            "shallow index, one-record batches",
            BATCHES,
            SINGLE_100,
            {OURS: ("index_runs",), **java},
            targets=(Target(80),),
        ),
        Row(
            "shallow index, one-record batches, as one array", BATCHES, SINGLE_100, {OURS: ("index",), **java}
        ),
        Row("CRC check of a segment, 16 KiB batches", GIGABYTES, PLAIN_100, crc, "ISA-L", least),
        Row("CRC check of a segment, one-record batches", GIGABYTES, SINGLE_100, crc, "ISA-L"),
    ]


def _building() -> list[Row]:
    peers = {AIOKAFKA: ("build_from_rows",), KAFKA_PYTHON: ("build_from_rows",)}
    columns, rows = {OURS: ("build_from_columns",)}, {OURS: ("build_from_rows",), **peers}
    return [
        Row("build v2 batches from columns, 100 B", RECORDS, PLAIN_100, columns, targets=(Target(15),)),
        Row("build v2 batches from rows, 100 B", RECORDS, PLAIN_100, rows),
    ]


def _threads() -> list[Row]:
    rows = []
    for work, name, segment in (
        ("convert", "v2 -> v1, no codec", PLAIN_100),
        ("numpy_batches", "decode to numpy", PLAIN_100),
        ("convert", "v2 -> v1, lz4", Segment(Codec.LZ4)),
    ):
        works = {OURS: (f"{work}_two_threads",), FLOOR: (f"{work}_one_thread",)}
        label = f"two threads, two segments: {name}, 100 B"
        rows.append(Row(label, RECORDS, segment, works, "one thread", (Target(1.8, FLOOR),), copies=2))
    return rows


def all_rows() -> list[Row]:
    return [
        *_plain_conversion(),
        *_compressed_conversion(),
        *_decoding(),
        *_scanning(),
        *_building(),
        *_threads(),
    ]
