"""A memory plan as settings of Spark executors.

Total is what the plan bounds, as everywhere: the Python workers, one for each core, and the RocksDB state stores, which
live outside the JVM's heap. A container holds that, the heap and the JVM's own overhead: `spark.executor.memory` +
`spark.executor.memoryOverhead` + `spark.executor.pyspark.memory`, which is what Spark asks its resource manager for.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from kafkafmt.memory.errors import MemoryPlanError
from kafkafmt.sizes import parse_size

if TYPE_CHECKING:
    from kafkafmt.memory.plan import MemoryPlan, Task

_MIB = 1024 * 1024
# A limit on virtual memory: libarrow and the interpreter map most of that before the first batch comes.
LEAST_WORKER_BYTES = 512 * _MIB
# Spark refuses a smaller heap: one and a half times what it reserves.
LEAST_HEAP_BYTES = 450 * _MIB
# Spark's own defaults of `minMemoryOverhead`, `memoryOverheadFactor` and `highPriorityPoolRatio`.
_LEAST_OVERHEAD_BYTES = 384 * _MIB
_OVERHEAD_PART = 10
_HIGH_PRIORITY_POOL_RATIO = 0.1
# With the pool above it must stay below 1.
_MOST_WRITE_BUFFER_RATIO = 0.85
_MOST_TOTAL_MIB = 2**30

_STORES = "spark.sql.streaming.stateStore"
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def spark_settings(plan: MemoryPlan, heap_bytes: int | str, task: Task) -> dict[str, str]:
    """The settings of executors with as many cores as the plan has threads; see `MemoryPlan.spark_conf`."""
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
            f"{_STORES}.rocksdb.maxMemoryUsageMB": str(_whole_mib(state) // _MIB),
            f"{_STORES}.rocksdb.writeBufferCacheRatio": f"{min(ratio, _MOST_WRITE_BUFFER_RATIO):.3f}",
            f"{_STORES}.rocksdb.highPriorityPoolRatio": str(_HIGH_PRIORITY_POOL_RATIO),
            f"{_STORES}.rocksdb.writeBufferSizeMB": str(thread.write_buffer_bytes // _MIB),
            f"{_STORES}.rocksdb.maxWriteBufferNumber": str(thread.max_write_buffer_number),
        }
    return settings


def _ensure_floors(plan: MemoryPlan, task: Task) -> None:
    """Raise MemoryPlanError where a worker or a write buffer would be smaller than what Spark can do with."""
    if _holds_floors(plan, task):
        return
    least_mib = bisect_left(
        range(_MOST_TOTAL_MIB), True, key=lambda mib: mib > 0 and _holds_floors_at(plan, mib * _MIB, task)
    )
    what = f"Spark executors of {plan.threads} cores: {LEAST_WORKER_BYTES // _MIB} MiB for the Python worker of each"
    if task.stores:
        what += f", and write buffers of 1 MiB for each of {task.stores} stores of a core"
    raise MemoryPlanError(what, least_mib * _MIB, plan.total_bytes)


def _holds_floors_at(plan: MemoryPlan, total_bytes: int, task: Task) -> bool:
    try:
        return _holds_floors(plan.replaced(total_bytes=total_bytes), task)
    except MemoryPlanError:
        return False


def _holds_floors(plan: MemoryPlan, task: Task) -> bool:
    thread = plan.divided(*task)
    workers = plan.total_bytes - _whole_mib(plan.threads * thread.state_bytes)
    has_write_buffers = task.stores == 0 or thread.write_buffer_bytes >= _MIB
    return workers >= plan.threads * LEAST_WORKER_BYTES and has_write_buffers


def _whole_mib(size: int) -> int:
    return -(-size // _MIB) * _MIB


def _mib_text(size: int) -> str:
    return f"{size // _MIB}m"
