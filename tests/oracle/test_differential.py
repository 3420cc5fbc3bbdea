"""kafkafmt against Kafka's own record code on random batches: reading, writing, and converting either way.

Each run draws new batches from KAFKAFMT_SEED (the session's header prints it), of which every one is decoded,
built, and converted by both. Then some are mutated; `make fuzz-oracle` mutates more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

import kafkafmt as kf
from fuzz.differential import GROUP, Inputs, compared
from oracle.comparison import DEPENDS_ON_COMPRESSOR, compare_decoding, compare_down_conversion
from oracle.generate import FAMILIES, BatchGenerator, Family
from oracle.kafka import KafkaOracle, decode_request, down_convert_request

pytestmark = [pytest.mark.oracle, pytest.mark.xdist_group("oracle")]

BATCHES_A_FAMILY = 160  # 13 families: 2,080 batches
MIXED_SETS = 150
MUTATED_GROUPS = 5
BUILDER_FIELDS = (
    *("last_offset", "delete_horizon_ms", "partition_leader_epoch"),
    *("producer_id", "producer_epoch", "base_sequence", "is_transactional", "is_control"),
)

Batch = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """A record set, and what Kafka reads in it."""

    spec: Any
    data: bytes
    answer: Batch

    @property
    def batches(self) -> list[Batch]:
        batches: list[Batch] = self.answer["batches"]
        return batches

    @property
    def is_compressed(self) -> bool:
        return any(batch["codec"] for batch in self.batches)

    def fetch_offsets(self) -> list[int]:
        """The start, and somewhere in the middle."""
        offsets = [record["offset"] for batch in self.batches for record in batch["records"]]
        first, last = self.batches[0]["base_offset"], self.batches[-1]["last_offset"]
        return [first, offsets[len(offsets) // 2] if len(offsets) > 1 else last + 1]


def read_by_kafka(oracle: KafkaOracle, sets: Sequence[bytes]) -> list[list[Batch]]:
    return [answer["batches"] for answer in oracle.ask([decode_request(data) for data in sets])]


def sample(oracle: KafkaOracle, specs: Sequence[Any], sets: Sequence[bytes]) -> list[Sample]:
    answers = oracle.ask([decode_request(data) for data in sets])
    return [Sample(*case) for case in zip(specs, sets, answers, strict=True)]


def build(oracle: KafkaOracle, specs: Sequence[Batch]) -> list[bytes]:
    built = oracle.ask(specs)
    refused = [(spec, answer) for spec, answer in zip(specs, built, strict=True) if "error" in answer]
    assert not refused, f"the generator asked for what Kafka refuses: {refused[0]}"
    return [answer["bytes"] for answer in built]


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


@pytest.fixture(scope="module")
def samples(oracle: KafkaOracle, family: Family, seed: int) -> list[Sample]:
    """Batches of one format and codec, each a record set of its own."""
    generator = BatchGenerator(Random(f"{seed} {family}"))
    specs = [generator.batch(family) for _ in range(BATCHES_A_FAMILY)]
    return sample(oracle, specs, build(oracle, specs))


@pytest.fixture(scope="module")
def mixed(oracle: KafkaOracle, seed: int) -> list[Sample]:
    """Record sets of several batches, of any format and codec."""
    random = Random(f"{seed} mixed")
    sets = []
    for _ in range(MIXED_SETS):
        generator = BatchGenerator(random, random.choice((0, 2**40)))
        sets.append([generator.batch(random.choice(FAMILIES)) for _ in range(random.randrange(2, 8))])
    built = iter(build(oracle, [spec for specs in sets for spec in specs]))
    return sample(oracle, sets, [b"".join(next(built) for _ in specs) for specs in sets])


def without(batch: Batch, names: Sequence[str]) -> Batch:
    return {name: value for name, value in batch.items() if name not in names}


def rebuilt(batch: Batch) -> bytes:
    """A batch like the one that Kafka reads, by kafkafmt's builder."""
    builder = kf.RecordBatchBuilder(batch["magic"], kf.Codec(batch["codec"]), **builder_options(batch))
    for record in batch["records"]:
        builder.append_with_offset(
            *(record[name] for name in ("offset", "timestamp", "key", "value", "headers"))
        )
    return builder.build()


def builder_options(batch: Batch) -> dict[str, Any]:
    options: dict[str, Any] = {"base_offset": batch["base_offset"]}
    if batch["timestamp_type"] == kf.TimestampType.LOG_APPEND_TIME:
        options |= {
            "timestamp_type": kf.TimestampType.LOG_APPEND_TIME,
            "log_append_time": batch["max_timestamp"],
        }
    if batch["magic"] == 2:
        options |= {name: batch[name] for name in BUILDER_FIELDS}
    return options


def test_decode_when_kafka_wrote_the_batch_then_reads_what_kafka_reads(samples: list[Sample]) -> None:
    for case in samples:
        assert not compare_decoding(case.data, case.answer), case.spec


def test_decode_when_formats_and_codecs_mix_then_reads_what_kafka_reads(mixed: list[Sample]) -> None:
    for case in mixed:
        assert not compare_decoding(case.data, case.answer), case.spec


def test_build_when_kafka_reads_the_batch_then_it_finds_what_was_put_in(
    oracle: KafkaOracle, samples: list[Sample]
) -> None:
    sets = [b"".join(rebuilt(batch) for batch in case.batches) for case in samples]
    for case, data, batches in zip(samples, sets, read_by_kafka(oracle, sets), strict=True):
        if case.is_compressed or keeps_create_times(case):
            assert readable(batches) == readable(case.batches), case.spec
        else:
            assert data == case.data, case.spec


def keeps_create_times(case: Sample) -> bool:
    """In v2 under log-append time Kafka leaves the create times in the deltas, where no reader sees them."""
    return any(
        b["magic"] == 2 and b["timestamp_type"] == kf.TimestampType.LOG_APPEND_TIME for b in case.batches
    )


def readable(batches: list[Batch]) -> list[Batch]:
    """What a consumer can tell of batches: not how their bytes are laid out."""
    layout = (*DEPENDS_ON_COMPRESSOR, "base_timestamp")
    return [
        without(batch, layout) | {"records": [without(record, layout) for record in batch["records"]]}
        for batch in batches
    ]


def down_conversions(
    oracle: KafkaOracle, cases: list[Sample], to_magic: int
) -> list[tuple[Sample, int, dict[str, Any]]]:
    """Each record set, each of its fetch offsets, and what Kafka makes of it."""
    asked = [(case, offset) for case in cases for offset in case.fetch_offsets()]
    answers = oracle.ask([down_convert_request(case.data, to_magic, offset) for case, offset in asked])
    return [(case, offset, answer) for (case, offset), answer in zip(asked, answers, strict=True)]


def check_down_conversion(case: Sample, to_magic: int, first_offset: int, answer: dict[str, Any]) -> None:
    if "error" in answer:
        assert answer["error"] == "UnsupportedCompressionTypeException", answer
        with pytest.raises(kf.UnsupportedCompressionTypeError):
            kf.MemoryRecords(case.data).down_convert(to_magic, first_offset)
    where = (to_magic, first_offset, case.spec)
    assert not compare_down_conversion(case.data, to_magic, first_offset, answer, set()), where


@pytest.mark.parametrize("to_magic", [1, 0])
def test_down_convert_when_given_one_batch_then_makes_what_kafka_makes(
    oracle: KafkaOracle, samples: list[Sample], to_magic: int
) -> None:
    for case, first_offset, answer in down_conversions(oracle, samples, to_magic):
        check_down_conversion(case, to_magic, first_offset, answer)


@pytest.mark.parametrize("to_magic", [1, 0])
def test_down_convert_when_formats_and_codecs_mix_then_makes_what_kafka_makes(
    oracle: KafkaOracle, mixed: list[Sample], to_magic: int
) -> None:
    for case, first_offset, answer in down_conversions(oracle, mixed, to_magic):
        check_down_conversion(case, to_magic, first_offset, answer)


def test_up_convert_when_given_old_formats_then_kafka_reads_the_same_records_in_v2(
    oracle: KafkaOracle, samples: list[Sample]
) -> None:
    check_up_conversions(oracle, samples)


def test_up_convert_when_formats_and_codecs_mix_then_kafka_reads_the_same_records_in_v2(
    oracle: KafkaOracle, mixed: list[Sample]
) -> None:
    check_up_conversions(oracle, mixed)


def check_up_conversions(oracle: KafkaOracle, cases: list[Sample]) -> None:
    sets = [bytes(kf.MemoryRecords(case.data).down_convert(2).records.buffer) for case in cases]
    for case, batches in zip(cases, read_by_kafka(oracle, sets), strict=True):
        assert all(batch["magic"] == 2 and batch["valid"] for batch in batches), case.spec
        assert contents(batches) == contents(case.batches), case.spec


@pytest.mark.parametrize("codec", list(kf.Codec), ids=lambda codec: codec.name.lower())
def test_recompress_when_formats_and_codecs_mix_then_kafka_reads_the_same_records(
    oracle: KafkaOracle, mixed: list[Sample], codec: kf.Codec
) -> None:
    cases = [
        case for case in mixed if codec != kf.Codec.ZSTD or all(batch["magic"] == 2 for batch in case.batches)
    ]
    sets = [bytes(kf.MemoryRecords(case.data).recompress(codec).records.buffer) for case in cases]
    for case, batches in zip(cases, read_by_kafka(oracle, sets), strict=True):
        assert all(batch["valid"] for batch in batches), case.spec
        assert contents(batches) == contents(case.batches), case.spec
        found = {batch["codec"] for batch in batches if batch["records"] and not batch["is_control"]}
        assert found <= {codec}, case.spec


def contents(batches: list[Batch]) -> list[Batch]:
    """The records, without what their format adds: v2 has no way to say that there is no timestamp type."""
    return [
        {**without(record, ("size_in_bytes",)), "timestamp_type": max(record["timestamp_type"], 0)}
        for batch in batches
        for record in batch["records"]
    ]


def test_mutated_sets_when_compared_then_differ_only_as_documented(oracle: KafkaOracle, seed: int) -> None:
    inputs = Inputs(Random(f"{seed} mutated"))
    read = refused = 0
    for _, comparison, answers in compared(oracle, (inputs.group() for _ in range(MUTATED_GROUPS))):
        comparison.check(answers)
        batches = answers[0]["batches"]
        refused += any("error" in one for one in (answers[0], *batches))
        read += any(one.get("records") for one in batches)
    assert min(read, refused) > MUTATED_GROUPS * GROUP // 10
