"""Back up the topics of a cluster to a folder of any storage, in generations, each of which can be restored.

`open_backup` runs a backup. `list_`, `verify` and `prune` list, read and delete generations.

Requires the extra `backup`.
"""

from kafkafmt.backup.engine import Backup, BackupOptions, open_backup
from kafkafmt.backup.generations import GenerationSummary, Problem, Pruned, list_, prune, verify

__all__ = [
    "Backup",
    "BackupOptions",
    "GenerationSummary",
    "Problem",
    "Pruned",
    "list_",
    "open_backup",
    "prune",
    "verify",
]
