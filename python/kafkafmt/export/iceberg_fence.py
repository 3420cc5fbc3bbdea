"""A fence in an Iceberg table: a run that was suspended, and taken for dead, cannot commit files that are gone.

A run that finds dead ones commits an empty snapshot, with its name in a property of the table, before it removes their
files. A commit asserts the current snapshot, so one that was prepared before the fence fails. If it is tried again, its
run finds the name of another one.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.table import Table

EXPORT_FENCE = "kafkafmt.fence"
MAINTENANCE_FENCE = "kafkafmt.maintenance-fence"


def fence_of(table: Table, name: str) -> str:
    """Return the run that has raised the fence last; empty if none has."""
    return table.properties.get(name, "")


def raise_fence(table: Table, name: str, run: str) -> None:
    """Let the commits of earlier runs fail from now on. Raises CommitFailedException if another writer was faster."""
    transaction = table.transaction()
    transaction.set_properties({name: run})
    producer: Any = transaction.update_snapshot().fast_append()
    producer.commit_uuid = uuid.UUID(run)  # the next run removes what a killed one has left
    with transaction, producer:
        pass
