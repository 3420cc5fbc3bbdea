"""A fence in an Iceberg table: a run that was suspended, and taken for dead, cannot commit files that are gone.

A run that finds dead ones commits an empty snapshot, with its name in a property of the table, before it removes their
files. A commit asserts the current snapshot, so one that was prepared before the fence fails. If it is tried again, its
run finds the name of another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkafmt.export.iceberg_commit import committing

if TYPE_CHECKING:
    from pyiceberg.table import Table

EXPORT_FENCE = "kafkafmt.fence"
MAINTENANCE_FENCE = "kafkafmt.maintenance-fence"


def fence_of(table: Table, name: str) -> str:
    """Return the run that has raised the fence last; empty if none has."""
    return table.properties.get(name, "")


def raise_fence(load: Callable[[], Table], name: str, run: str) -> None:
    """Let the commits of earlier runs fail from now on.

    load: reads the table. Raises CommitFailedException if another writer was faster.
    """
    with committing(load(), load, run, {name: run}):
        pass
