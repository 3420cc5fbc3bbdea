"""A report of logs as one HTML page: what is in them, when it came, and what is damaged.

`gather.py` reads the logs into plain data of bounded size. `page.py` writes the data, the style and the script as one
page. `page/` has the parts of the page; its script draws what is scrolled into view.
"""

from kafkafmt.jobs.report.gather import GroupPosition, PartitionReport, count_logs, gather_partitions
from kafkafmt.jobs.report.page import PageHead, Totals, page_chunks

__all__ = [
    "GroupPosition",
    "PageHead",
    "PartitionReport",
    "Totals",
    "count_logs",
    "gather_partitions",
    "page_chunks",
]
