"""A backup: its generations, and the last or another one as a log directory."""

from kafkafmt.storage.backups.view import BackupFileSystem, manifest_of

__all__ = ["BackupFileSystem", "manifest_of"]
