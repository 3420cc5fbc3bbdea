"""The latest value of each key of each partition of a log directory, kept on disk within a plan's memory.

`Table` reads logs into a store, through a cache, and goes on where it was; `write_table` makes a Parquet file of it.
"""

from kafkafmt.jobs.table.parquet import TABLE_COLUMNS, bound_threads, write_table
from kafkafmt.jobs.table.rows import TableRow
from kafkafmt.jobs.table.state import TableError, TableState
from kafkafmt.jobs.table.table import Table

__all__ = ["TABLE_COLUMNS", "Table", "TableError", "TableRow", "TableState", "bound_threads", "write_table"]
