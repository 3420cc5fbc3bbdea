"""Keep the latest value of each key of each partition of a log directory, on disk and within the memory of a plan.

`Table` reads logs into a store, through a cache, and continues where it ended. `write_table` writes a Parquet file.
"""

from kafkafmt.jobs.table.parquet import TABLE_COLUMNS, bound_threads, write_table
from kafkafmt.jobs.table.rows import TableRow
from kafkafmt.jobs.table.state import TableError, TableState
from kafkafmt.jobs.table.table import Table

__all__ = ["TABLE_COLUMNS", "Table", "TableError", "TableRow", "TableState", "bound_threads", "write_table"]
