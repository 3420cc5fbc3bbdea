"""`spark.readStream.format("kafkafmt")` on a real local Spark; test_log_stream.py has the cases that need no JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kafkafmt.spark import first_line
from log.samples import batch
from spark.growing import GrowingLog
from spark.streams import Stream

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    (tmp_path / "logs").mkdir()
    with Stream(spark, tmp_path / "logs", tmp_path / "checkpoint") as stream:
        yield stream


def test_stream_when_logs_grow_then_reads_each_record_once_also_after_a_restart(stream: Stream) -> None:
    log = GrowingLog(stream.logs / "orders-0")
    log.append_batches(2)
    query = stream.start()
    query.processAllAvailable()
    log.append_batches()
    data = batch(log.next_offset, 10)
    log.append(data[:100])
    query.processAllAvailable()
    assert stream.offsets() == list(range(30))
    before = len(stream.micro_batches())
    log.append(data[100:])
    log.next_offset += 10
    log.roll()
    log.append_batches()
    GrowingLog(stream.logs / "visits-1", 7).append_batches()
    query.processAllAvailable()
    query.stop()
    # The query looks at the folder at any time: what came may be more than one micro-batch.
    assert sorted(row for rows in stream.micro_batches()[before:] for row in rows) == [
        *(("orders", 0, offset) for offset in range(30, 50)),
        *(("visits", 1, offset) for offset in range(7, 17)),
    ]
    log.append_batches()
    stream.run()
    assert stream.micro_batches()[-1] == [("orders", 0, offset) for offset in range(50, 60)]
    assert sum(map(len, stream.micro_batches())) == 70
    assert stream.written_offsets()[-1] == {"orders": {"0": 60}, "visits": {"1": 17}}


def test_available_now_when_limited_then_reads_up_to_the_end_of_its_start(stream: Stream) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark 4.1 knows no limits")
    log = GrowingLog(stream.logs / "orders-0")
    log.append_batches(5)
    query = stream.run(maxRowsPerTrigger=25)
    assert [len(rows) for rows in stream.micro_batches()] == [20, 20, 10]
    assert stream.offsets() == list(range(50))
    (source,) = query.lastProgress["sources"]
    assert json.loads(source["latestOffset"]) == {"orders": {"0": 50}}
    log.append_batches()
    stream.run(maxBytesPerTrigger="1k")
    assert stream.offsets() == list(range(60))


def test_once_when_limited_then_reads_all_there_is(stream: Stream) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark 4.1 knows no limits")
    GrowingLog(stream.logs / "orders-0").append_batches(5)
    stream.start({"once": True}, maxRowsPerTrigger=10).awaitTermination()
    assert [len(rows) for rows in stream.micro_batches()] == [50]


def failure(act: Callable[[], Any]) -> str:
    with pytest.raises(Exception, match=r"PYTHON_|STREAM_") as caught:
        act()
    return first_line(caught.value)


def test_data_when_lost_then_ends_the_query_in_one_line_or_is_passed_over(stream: Stream) -> None:
    log = GrowingLog(stream.logs / "orders-0")
    log.append_batches()
    stream.run()
    log.append_batches()
    log.roll()
    log.append_batches()
    log.delete_first()
    expected = f"partition orders-0: expected offset 10, found the log to begin at 20 ({log.folder})"
    line = failure(stream.run)
    assert line == f"{expected}; failOnDataLoss=false continues with the remaining records"
    stream.run(failOnDataLoss="false")
    assert stream.offsets() == [*range(10), *range(20, 30)]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets: a stream does not take it"),
        (
            {"startingOffsets": '{"orders": {"0": 11}}'},
            "partition orders-0: startingOffsets 11 is outside the log",
        ),
    ],
)
def test_bad_option_when_given_to_a_stream_then_is_one_line(
    stream: Stream, options: dict[str, str], line: str
) -> None:
    GrowingLog(stream.logs / "orders-0").append_batches()
    assert failure(lambda: stream.run(**options)).startswith(line)


def test_option_of_streams_when_given_to_a_read_then_is_one_line(stream: Stream) -> None:
    GrowingLog(stream.logs / "orders-0").append_batches()
    reader = stream.spark.read.format("kafkafmt").option("maxRowsPerTrigger", 5)
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        reader.load(str(stream.logs)).collect()
    assert first_line(caught.value).startswith("option maxRowsPerTrigger: streams have it")
