"""Back up the topics of a cluster to a folder of any storage, in generations, each of which can be restored.

`open_backup` runs a backup. Requires the extra `backup`.
"""

from kafkafmt.backup.engine import Backup, BackupOptions, open_backup

__all__ = ["Backup", "BackupOptions", "open_backup"]
