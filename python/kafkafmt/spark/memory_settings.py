"""Convert a memory plan to settings of Spark executors.

The plan's total bounds the Python workers, one for each core, and the RocksDB state stores, which are outside the JVM's
heap. A container also needs the heap and the JVM's overhead. Spark requests from its resource manager
`spark.executor.memory` + `spark.executor.memoryOverhead` + `spark.executor.pyspark.memory`.
"""

from __future__ import annotations

from dataclasses import replace

from kafkafmt._util.sizes import MIB, parse_size
from kafkafmt.memory.division import least_total
from kafkafmt.memory.errors import MemoryPlanError
from kafkafmt.memory.plan import MemoryPlan, Task

# The limit is on virtual memory: libarrow and the interpreter map most of this before the first batch arrives.
LEAST_WORKER_BYTES = 512 * MIB
# Spark refuses a smaller heap: 1.5 times the memory that it reserves.
LEAST_HEAP_BYTES = 450 * MIB
# Spark's own defaults of `minMemoryOverhead`, `memoryOverheadFactor` and `highPriorityPoolRatio`.
_LEAST_OVERHEAD_BYTES = 384 * MIB
_OVERHEAD_PART = 10
_HIGH_PRIORITY_POOL_RATIO = 0.1
# The sum of this and the ratio above must stay below 1.
_MAX_WRITE_BUFFER_RATIO = 0.85
# The default task of a core: one partition, one store.
_TASK = Task(1, 1)

_STORES = "spark.sql.streaming.stateStore"
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def spark_conf(
    plan: MemoryPlan,
    executor_cores: int | None = None,
    *,
    heap_bytes: int | str = "1g",
    task: Task = _TASK,
) -> dict[str, str]:
    """Return a plan as settings of Spark executors, by name. Each executor may use the plan's total.

    The state stores of an executor are RocksDB state stores under one limit. The rest of the total is
    `spark.executor.pyspark.memory`, a limit on virtual memory that Spark divides by the cores.

    Args:
        executor_cores: replaces the plan's threads, if given.
        heap_bytes: the heap of the JVM, in addition to the total.
        task: the partitions and stores that a core has at a time.

    Raises MemoryPlanError, with the least sufficient total, if a worker would get less than 512 MiB or a write buffer
    less than 1 MiB; ValueError for a heap below 450 MiB, which Spark refuses.
    """
    if executor_cores is not None:
        plan = replace(plan, threads=executor_cores)
    try:
        heap = parse_size(heap_bytes, least=LEAST_HEAP_BYTES)
    except ValueError as error:
        raise ValueError(f"heap_bytes: {error}") from None
    _ensure_floors(plan, task)
    thread = plan.thread_plan(*task)
    state = plan.threads * thread.state_bytes
    overhead = max(_LEAST_OVERHEAD_BYTES, heap // _OVERHEAD_PART) + _whole_mib(state)
    settings = {
        "spark.executor.cores": str(plan.threads),
        "spark.executor.memory": _mib_text(heap),
        "spark.executor.memoryOverhead": _mib_text(overhead),
        "spark.executor.pyspark.memory": _mib_text(plan.total_bytes - _whole_mib(state)),
    }
    if task.stores:
        ratio = plan.threads * thread.write_buffers_bytes / state
        settings |= {
            f"{_STORES}.providerClass": _PROVIDER,
            f"{_STORES}.rocksdb.boundedMemoryUsage": "true",
            f"{_STORES}.rocksdb.maxMemoryUsageMB": str(_whole_mib(state) // MIB),
            f"{_STORES}.rocksdb.writeBufferCacheRatio": f"{min(ratio, _MAX_WRITE_BUFFER_RATIO):.3f}",
            f"{_STORES}.rocksdb.highPriorityPoolRatio": str(_HIGH_PRIORITY_POOL_RATIO),
            f"{_STORES}.rocksdb.writeBufferSizeMB": str(thread.write_buffer_bytes // MIB),
            f"{_STORES}.rocksdb.maxWriteBufferNumber": str(thread.max_write_buffer_number),
        }
    return settings


def _ensure_floors(plan: MemoryPlan, task: Task) -> None:
    """Raise MemoryPlanError if a worker or a write buffer would be smaller than Spark needs."""
    if _holds_floors(plan, task):
        return
    least = least_total(
        lambda total: _holds_floors(replace(plan, total_bytes=total), task), plan.total_bytes, step=MIB
    )
    what = f"Spark executors of {plan.threads} cores: {LEAST_WORKER_BYTES // MIB} MiB for the Python worker of each"
    if task.stores:
        what += f", and write buffers of 1 MiB for each of {task.stores} stores of a core"
    raise MemoryPlanError(what, least, plan.total_bytes)


def _holds_floors(plan: MemoryPlan, task: Task) -> bool:
    thread = plan.divided(*task)
    workers = plan.total_bytes - _whole_mib(plan.threads * thread.state_bytes)
    has_write_buffers = task.stores == 0 or thread.write_buffer_bytes >= MIB
    return workers >= plan.threads * LEAST_WORKER_BYTES and has_write_buffers


def _whole_mib(size: int) -> int:
    return -(-size // MIB) * MIB


def _mib_text(size: int) -> str:
    return f"{size // MIB}m"
