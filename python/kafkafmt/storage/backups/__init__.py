"""A backup as a log directory."""

from kafkafmt.storage.backups.view import BackupFileSystem

__all__ = ["BackupFileSystem"]
