"""One commit of a snapshot to an Iceberg table.

pyiceberg does not repeat a commit, because it would not compare the offsets again. If the answer of the catalog is
lost, its client repeats the request, which conflicts with itself. Then the table is read again, and the commit succeeds
if the table has its snapshot.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.table import Table


@contextlib.contextmanager
def committing(
    table: Table,
    reload: Callable[[], Table],
    run: str,
    properties: Mapping[str, str],
    *,
    summary: Mapping[str, str] | None = None,
    overwrites: bool = False,
) -> Iterator[Any]:
    """Commit a snapshot to `table` at the end of the block, which gets the producer of the snapshot to add files to.

    reload: reads the table again, after a conflict.
    run: names the files of the snapshot, so that the next run finds what a killed one has left.
    properties: of the table, which the same commit sets.

    Raises CommitFailedException or ValidationException after the files of the snapshot were removed.
    """
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    name = uuid.UUID(run)
    table.metadata.properties["commit.retry.num-retries"] = "0"  # in memory only
    transaction = table.transaction()
    transaction.set_properties(dict(properties))
    update = transaction.update_snapshot(dict(summary or {}))
    producer: Any = update.overwrite(name) if overwrites else update.fast_append()
    producer.commit_uuid = name
    # pyiceberg removes the manifests after any conflict, from version 0.12 on: also those of the current snapshot.
    remove_manifests = getattr(producer, "_clean_all_uncommitted", lambda: None)
    producer._clean_all_uncommitted = lambda: None
    try:
        with transaction, producer:
            yield producer
    except (CommitFailedException, ValidationException):
        if reload().snapshot_by_id(producer.snapshot_id) is None:
            remove_manifests()
            raise
