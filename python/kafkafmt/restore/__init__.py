"""Restore topics and the offsets of consumer groups from a backup, or from any log directory, into a cluster.

`open_restore` runs a restore. Requires the extra `backup`.
"""

from kafkafmt._util.extras import needed_by

with needed_by("kafkafmt.restore", "backup"):
    from kafkafmt.restore.engine import Restore, open_restore
    from kafkafmt.restore.errors import RestoreError
    from kafkafmt.restore.options import RestoreOptions

__all__ = ["Restore", "RestoreError", "RestoreOptions", "open_restore"]
