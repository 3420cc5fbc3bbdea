"""Back up the topics of a cluster to a folder of any storage, in generations, each of which can be restored.

`open_backup` runs a backup. `list_generations`, `Verification` and `prune` list, read and delete generations.

Requires the extra `backup`.
"""

from kafkafmt._util.extras import needed_by

with needed_by("kafkafmt.backup", "backup"):
    from kafkafmt.backup.engine import Backup, BackupOptions, open_backup
    from kafkafmt.backup.listing import GenerationSummary, list_generations
    from kafkafmt.backup.pruning import PruneReport, Retention, prune
    from kafkafmt.backup.verifying import ObjectCheck, Verification

__all__ = [
    "Backup",
    "BackupOptions",
    "GenerationSummary",
    "ObjectCheck",
    "PruneReport",
    "Retention",
    "Verification",
    "list_generations",
    "open_backup",
    "prune",
]
