"""The options of the data source: what is taken, and the one line for what is not."""

from __future__ import annotations

import pytest

from kafkafmt.scanning.selection import LATEST, Bound
from kafkafmt.spark.source.options import UNLIMITED, Amount, ReadOptions, StreamOptions
from kafkafmt.types import TopicPartition


def parse(**options: str) -> ReadOptions:
    return ReadOptions.parse({"path": "logs", **options})


def test_options_when_only_a_path_is_given_then_are_the_defaults() -> None:
    options = parse()
    assert options == ReadOptions(paths=("logs",))
    assert (options.unit, options.isolation, options.on_corrupt) == ("records", "read_uncommitted", "fail")
    assert (options.split_bytes, options.max_batch_bytes, options.verify) == (128 << 20, 4 << 20, True)


def test_names_and_words_when_in_another_case_then_are_taken() -> None:
    found = parse(UNIT="Batches", oncorrupt="KEEP", Verify="FALSE", includeheaders="True")
    assert (found.unit, found.on_corrupt, found.verify, found.include_headers) == (
        "batches",
        "keep",
        False,
        True,
    )


def test_options_of_a_file_system_when_given_then_are_handed_on_and_not_shown() -> None:
    options = parse(path="s3://bucket/logs", Region="eu-west-1", secret_key="hidden")
    assert options.file_system == {"region": "eu-west-1", "secret_key": "hidden"}
    assert "hidden" not in repr(options)
    assert "hidden" not in repr(ReadOptions.parse({"path": "s3://key:hidden@bucket/logs"}))


def test_paths_when_several_are_loaded_then_are_spark_s_json() -> None:
    assert ReadOptions.parse({"paths": '["a", "b"]'}).paths == ("a", "b")


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64k", 65536), ("128 MiB", 128 << 20), ("2G", 2 << 30), ("1tb", 1 << 40)]
)
def test_sizes_when_they_have_a_unit_then_are_bytes(text: str, size: int) -> None:
    assert parse(splitBytes=text).split_bytes == size


def test_topics_when_listed_or_matched_then_are_selected() -> None:
    for options, chosen in [
        ({}, ["orders", "orders-eu", "visits"]),
        ({"topics": "orders*"}, ["orders", "orders-eu"]),
        ({"topics": "visits, orders"}, ["orders", "visits"]),
        ({"subscribe": "orders"}, ["orders"]),
        ({"subscribePattern": ".*s"}, ["orders", "visits"]),
    ]:
        selection = parse(**options).topics
        assert [name for name in ("orders", "orders-eu", "visits") if name in selection] == chosen
    selection = parse(topics="visits,order?").topics
    assert (selection.unmatched(["visits", "orders"]), selection.unmatched(["visits"])) == (None, "order?")


def test_offsets_when_json_then_are_those_of_spark_s_kafka_source() -> None:
    options = parse(startingOffsets='{"a": {"0": 23, "1": -2}}', endingOffsets='{"a": {"0": -1, "1": 7}}')
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    assert options.starting == Bound({first: 23, second: None})
    assert options.ending == Bound({first: None, second: 7})
    assert parse(startingOffsets="earliest", endingOffsets="Latest").starting == Bound()
    assert parse(startingTimestamp="1700000000000").starting == Bound(timestamp=1_700_000_000_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "unknown option 'startingOffset': did you mean 'startingOffsets'?"),
        ({"kafka.bootstrap.servers": "x"}, "unknown option 'kafka.bootstrap.servers': expected one of"),
        (
            {"unit": "rows"},
            "option unit: expected records, batches, offsets, transactions or metadata, found 'rows'",
        ),
        ({"isolation": "committed"}, "option isolation: expected read_uncommitted or read_committed"),
        ({"onCorrupt": "ignore"}, "option onCorrupt: expected fail, skip or keep, found 'ignore'"),
        ({"onCorrupt": "keep"}, "onCorrupt: keep needs unit=batches"),
        ({"verify": "no"}, "option verify: expected true or false, found 'no'"),
        ({"splitBytes": "0"}, "option splitBytes: expected bytes, 1 or more"),
        ({"maxBatchBytes": "4 cows"}, "option maxBatchBytes: expected bytes"),
        ({"maxBatchBytes": "2g"}, "option maxBatchBytes: expected at most 1073741824"),
        ({"columns": "key,,value"}, "option columns: expected distinct names"),
        ({"columns": "key,KEY"}, "option columns: expected each column once, in any case"),
        ({"subscribePattern": "("}, "option subscribePattern: expected a regular expression"),
        ({"subscribe": "a", "topics": "b"}, "options topics and subscribe: expected one of them"),
        ({"startingOffsets": "[" * 100_000}, "option startingOffsets: expected earliest or JSON as"),
        ({"paths": "[" * 100_000}, "option paths: expected a JSON array of paths"),
        ({"topic": "a"}, "options topic and partition: expected both or neither"),
        ({"topic": "a", "partition": "-1"}, "option partition: expected a number from 0 to 2147483647"),
        (
            {"startingOffsets": "latest"},
            "option startingOffsets: expected earliest or offsets, and not latest (-1): only a stream begins there",
        ),
        (
            {"startingOffsets": '{"a": {"0": -1}}'},
            "option startingOffsets: expected earliest or offsets, and not latest (-1): only a stream begins there",
        ),
        (
            {"endingOffsets": '{"a": {"0": -2}}'},
            "option endingOffsets: expected latest or offsets, and not earliest (-2): only startingOffsets takes it",
        ),
        (
            {"region": "eu"},
            "option region: a local folder has no such setting; expected it with the URI of a store",
        ),
        ({"path": "", "paths": '["a", "b"]', "key_ring": "keys"}, "option key_ring: a local folder has no"),
        ({"endingOffsets": '{"a": {"0": true}}'}, "option endingOffsets: expected latest or JSON"),
        ({"endingOffsets": "[1]"}, "option endingOffsets: expected latest or JSON"),
        ({"startingTimestamp": "today"}, "option startingTimestamp: expected a number"),
        (
            {"startingOffsets": "earliest", "startingTimestamp": "1"},
            "options startingOffsets and startingTimestamp: expected one of them",
        ),
        (
            {"maxRowsPerTrigger": "5"},
            "option maxRowsPerTrigger: streams have it, as spark.readStream makes them",
        ),
        ({"failOnDataLoss": "no"}, "option failOnDataLoss: streams have it"),
        ({"path": ""}, "no path: expected log directories, segment files or globs"),
        ({"paths": "a,b"}, "option paths: expected a JSON array of paths"),
    ],
)
def test_bad_option_when_given_then_is_told_in_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        parse(**options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def parse_stream(**options: str) -> StreamOptions:
    return StreamOptions.parse({"path": "logs", **options})


def test_options_of_a_stream_when_given_then_are_limits_and_a_beginning() -> None:
    assert parse_stream() == StreamOptions(
        ReadOptions(paths=("logs",)), fails_on_data_loss=True, limit=UNLIMITED
    )
    found = parse_stream(maxbytespertrigger="1m", maxOffsetsPerTrigger="5", failOnDataLoss="False")
    assert (found.limit, found.fails_on_data_loss) == (Amount(1 << 20, 5, UNLIMITED.files), False)
    found = parse_stream(maxRowsPerTrigger="6", maxFilesPerTrigger="7", unit="batches")
    assert (found.limit, found.read.unit) == (Amount(UNLIMITED.size_in_bytes, 6, 7), "batches")
    assert parse_stream(startingOffsets="LATEST").read.starting == Bound(is_latest=True)
    both = parse_stream(startingOffsets='{"a": {"0": -1, "1": -2}}').read.starting
    assert both == Bound({TopicPartition("a", 0): LATEST, TopicPartition("a", 1): None})
    assert ReadOptions.parse_any({"path": "logs", "maxFilesPerTrigger": "7", "startingOffsets": "latest"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets: a stream does not take it"),
        ({"endingTimestamp": "1"}, "option endingTimestamp: a stream does not take it"),
        ({"maxRowPerTrigger": "1"}, "unknown option 'maxRowPerTrigger': did you mean 'maxRowsPerTrigger'?"),
        ({"maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger: expected a number from 1 to"),
        ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger: expected bytes, 1 or more"),
        (
            {"maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "2"},
            "options maxRowsPerTrigger and maxOffsetsPerTrigger: expected one of them",
        ),
        (
            {"startingOffsets": "latest", "startingTimestamp": "2"},
            "options startingOffsets and startingTimestamp: expected one of them",
        ),
    ],
)
def test_bad_option_when_given_to_a_stream_then_is_told_in_one_line(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        parse_stream(**options)
    assert str(caught.value).startswith(message)
