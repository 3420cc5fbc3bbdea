"""Keep the latest value of each key of each partition of logs or a cluster, on disk, within the memory of a plan.

`Table` reads into a store, through a cache, and continues where it ended. `fill_table` reads one to its end,
`fill_in_processes` several at a time. `write_table` writes a Parquet file.
"""

from kafkafmt.jobs.table.parquet import TABLE_COLUMNS, bound_threads, write_table
from kafkafmt.jobs.table.rows import TableRow
from kafkafmt.jobs.table.running import (
    TableReport,
    TableWork,
    Watch,
    fill_in_processes,
    fill_table,
    write_threads,
)
from kafkafmt.jobs.table.shared import SharedTable
from kafkafmt.jobs.table.state import TableError, TableState
from kafkafmt.jobs.table.table import Table

__all__ = [
    "TABLE_COLUMNS",
    "SharedTable",
    "Table",
    "TableError",
    "TableReport",
    "TableRow",
    "TableState",
    "TableWork",
    "Watch",
    "bound_threads",
    "fill_in_processes",
    "fill_table",
    "write_table",
    "write_threads",
]
