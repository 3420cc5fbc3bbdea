"""The storages of logs: local folders, and the file systems of `pyarrow.fs` (S3, GCS, Azure, HDFS).

The modules of `kafkafmt.log` read and write local folders. Remote folders are read-only.
"""

from kafkafmt.storage.base import FileStatus, FolderEntry, OpenFile, Storage, stamp_of
from kafkafmt.storage.local import LOCAL, LocalStorage
from kafkafmt.storage.locations import (
    StoragePath,
    Storages,
    is_uri,
    limit_read_ahead,
    read_file,
    side_by_side,
    storage_of,
    storage_path,
    writable_path,
)
from kafkafmt.storage.remote import READ_AHEAD, RemotePath, RemoteStatus, RemoteStorage

__all__ = [
    "LOCAL",
    "READ_AHEAD",
    "FileStatus",
    "FolderEntry",
    "LocalStorage",
    "OpenFile",
    "RemotePath",
    "RemoteStatus",
    "RemoteStorage",
    "Storage",
    "StoragePath",
    "Storages",
    "is_uri",
    "limit_read_ahead",
    "read_file",
    "side_by_side",
    "stamp_of",
    "storage_of",
    "storage_path",
    "writable_path",
]
