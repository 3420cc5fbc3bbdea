"""`kafkafmt memory`: the plan as a table, as JSON and as Spark settings, and what it refuses."""

from __future__ import annotations

import json
import shlex

import pytest

from cli.logs import is_one_line, run
from kafkafmt import MemoryPlan
from kafkafmt.memory import StoreKind, Task, spread
from kafkafmt.spark.memory_settings import spark_conf

GIB = 1024**3


def test_memory_when_printed_then_a_row_for_each_thread_and_the_sums():
    result = run("memory", "--total", "4g", "--threads", 4, "--tasks", 10, "--stores-per-task", 1)
    assert result.exit_code == 0
    title, header, *rows, total = result.stdout.splitlines()
    assert title == "4G over 4 threads of 1,073,741,824 bytes"
    assert header.split()[:3] == ["thread", "partitions", "stores"]
    assert [row.split()[:3] for row in rows] == [
        ["0", "3", "3"],
        ["1", "3", "3"],
        ["2", "2", "2"],
        ["3", "2", "2"],
    ]
    plans = MemoryPlan("4g", 4).rebalance(spread([Task(1, 1)] * 10, 4))
    assert total.split()[:4] == ["total", "10", "10", f"{4 * 32 * 1024**2:,}"]
    assert f"{sum(plan.cache_bytes for plan in plans):,}" in total


def test_memory_when_printed_as_json_then_the_plan_that_the_library_makes():
    options = [
        "--total",
        "1.5GiB",
        "--threads",
        2,
        "--tasks",
        3,
        "--partitions-per-task",
        4,
        "--stores-per-task",
        1,
    ]
    fixed = [
        "--reserved",
        "64m",
        "--producer",
        0,
        "--consumer",
        "16m",
        "--buffered-bytes-per-partition",
        "2m",
    ]
    stores = ["--block-cache", "32m", "--write-buffer", "1m", "--write-buffers", 3, "--least-batch", "64k"]
    result = run("memory", *options, *fixed, *stores, "--json")
    plan = MemoryPlan(
        3 * GIB // 2,
        2,
        0,
        "16m",
        reserved_bytes="64m",
        buffered_bytes_per_partition="2m",
        block_cache_bytes="32m",
        write_buffer_bytes="1m",
        max_write_buffer_number=3,
        least_batch_bytes="64k",
    )
    assert json.loads(result.stdout) == plan.to_json(plan.rebalance(spread([Task(4, 1)] * 3, 2)))


def test_memory_when_more_is_fixed_than_there_is_then_a_warning_beside_the_table():
    result = run("memory", "--total", "100m", "--tasks", 12, "--buffered-bytes-per-partition", "16m")
    assert result.exit_code == 0
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("warning: there may not be enough memory: 135790592 bytes lack")
    assert "-135,790,592" in result.stdout


def test_memory_when_printed_for_spark_then_conf_options_of_the_same_plan():
    result = run(
        "memory",
        "--total",
        "4g",
        "--threads",
        2,
        "--spark",
        "--cores",
        4,
        "--heap",
        "2g",
        "--stores-per-task",
        1,
    )
    words = shlex.split(result.stdout)
    assert words[::2] == ["--conf"] * (len(words) // 2)
    found = dict(word.split("=", 1) for word in words[1::2])
    assert found == spark_conf(MemoryPlan("4g", 2), 4, heap_bytes="2g", task=Task(1, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--total", "4 gigs"],
            "expected a size of 1 byte or more, as 65536, 512m, 4g or 1.5GiB, found '4 gigs'",
        ),
        (["--total", "0"], "expected a size of 1 byte or more"),
        (["--total", "64m", "--tasks", "100"], "expected a total of at least 161M, found 64M"),
        (["--total", "1g", "--threads", "4", "--spark"], "expected a total of at least 2G, found 1G"),
        (
            ["--total", "1g", "--write-buffer", "1k"],
            "write_buffer_bytes: expected a size of 65536 bytes or more",
        ),
        (
            ["--total", "4g", "--spark", "--heap", "100m"],
            "heap_bytes: expected a size of 471859200 bytes or more",
        ),
        (["--total", "4g", "--cores", "2"], "--cores is for --spark"),
        (["--total", "4g", "--spark", "--json"], "--json and --spark: expected one of them"),
        ([], "Missing option '--total'"),
    ],
)
def test_memory_when_it_cannot_be_then_one_line_and_status_2(arguments, message):
    result = run("memory", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert is_one_line(result.stderr)
    assert message in result.stderr


def test_memory_when_a_kind_of_store_is_chosen_then_the_plan_of_that_kind():
    options = ["--total", "512m", "--stores-per-task", 1, "--json"]
    kinds = {
        StoreKind.CACHED: ["--store", "rocksdb", "--cache", "on"],
        StoreKind.UNCACHED: ["--cache", "off"],
        StoreKind.DIRTY_MAP: ["--cache", "dirty"],
        StoreKind.IN_MEMORY: ["--store", "memory"],
    }
    for kind, chosen in kinds.items():
        plan = MemoryPlan("512m", store_kind=kind)
        expected = plan.to_json(plan.rebalance([[Task(1, 1)]]))
        assert json.loads(run("memory", *options, *chosen).stdout) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--store", "memory", "--cache", "on"],
            "--cache is for --store rocksdb: a store in memory has no cache",
        ),
        (
            ["--store", "memory", "--block-cache", "1m"],
            "block_cache_bytes: expected none for stores in memory",
        ),
        (["--cache", "off", "--spark"], "--store and --cache: expected neither with --spark"),
    ],
)
def test_memory_when_kinds_of_stores_exclude_an_option_then_one_line(options, expected):
    result = run("memory", "--total", "512m", *options)
    assert result.exit_code in (1, 2)
    assert is_one_line(result.stderr, [expected])
