"""A plan as settings of Spark executors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafmt import MemoryPlan, MemoryPlanError
from kafkafmt.memory import Task
from kafkafmt.spark.memory_settings import spark_conf

MIB = 1024**2
STORES = "spark.sql.streaming.stateStore"


def mib(settings: dict[str, str], name: str) -> int:
    assert settings[name].endswith("m")
    return int(settings[name][:-1])


def test_settings_when_made_then_what_the_container_has_is_the_total_and_the_jvm():
    settings = spark_conf(MemoryPlan("4g", 4), heap_bytes="2g", task=Task(1, 1))
    state = int(settings[f"{STORES}.rocksdb.maxMemoryUsageMB"])
    thread = MemoryPlan("4g", 4).thread_plan(1, 1)
    assert state == -(-4 * thread.state_bytes // MIB)
    assert mib(settings, "spark.executor.pyspark.memory") + state == 4096
    assert mib(settings, "spark.executor.memoryOverhead") == 384 + state
    assert (settings["spark.executor.cores"], settings["spark.executor.memory"]) == ("4", "2048m")


def test_settings_when_there_are_no_stores_then_nothing_is_said_of_them():
    settings = spark_conf(MemoryPlan("4g", 4), task=Task(2))
    assert sorted(settings) == [
        "spark.executor.cores",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.executor.pyspark.memory",
    ]
    assert settings["spark.executor.pyspark.memory"] == "4096m"


def test_settings_when_the_executor_has_other_cores_than_the_plan_threads_then_they_share_the_same_total():
    assert spark_conf(MemoryPlan("8g", 2), 4) == spark_conf(MemoryPlan("8g", 4))


def test_settings_when_the_heap_is_large_then_a_tenth_of_it_is_overhead():
    assert (
        mib(spark_conf(MemoryPlan("2g"), heap_bytes="10g", task=Task(1)), "spark.executor.memoryOverhead")
        == 1024
    )


@given(
    total=st.integers(1, 2**36),
    cores=st.integers(1, 16),
    partitions=st.integers(0, 50),
    stores=st.integers(0, 200),
)
def test_settings_when_made_of_any_plan_then_within_what_spark_takes_or_the_least_total(
    total, cores, partitions, stores
):
    task = Task(partitions, stores)
    settings, errors = None, []
    while settings is None:
        try:
            settings = spark_conf(MemoryPlan(total, cores), task=task)
        except MemoryPlanError as error:
            errors.append(error)
            total = error.least_total_bytes
    assert len(errors) <= 3  # of the plan alone, of its tasks, of Spark
    if errors:
        with pytest.raises(MemoryPlanError):
            spark_conf(MemoryPlan(max(total - MIB, 1), cores), task=task)
    workers = mib(settings, "spark.executor.pyspark.memory")
    assert workers >= 512 * cores
    assert workers * MIB <= total
    if stores:
        assert workers + int(settings[f"{STORES}.rocksdb.maxMemoryUsageMB"]) <= total // MIB
        ratio = float(settings[f"{STORES}.rocksdb.writeBufferCacheRatio"])
        assert 0 < ratio < 1 - float(settings[f"{STORES}.rocksdb.highPriorityPoolRatio"])
        assert int(settings[f"{STORES}.rocksdb.writeBufferSizeMB"]) >= 1
