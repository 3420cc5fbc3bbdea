"""The storages of logs: local folders, and the file systems of `pyarrow.fs` (S3, GCS, Azure, HDFS).

A storage lists folders, reads ranges of files, writes whole files atomically, and deletes them. Files that grow in
place are local: the modules of `kafkafmt.log` that append to a log take a `pathlib.Path`.
"""

from kafkafmt.storage.base import FileStatus, FolderEntry, OpenFile, Storage, is_temporary_name, stamp_of
from kafkafmt.storage.local import LOCAL, LocalStorage
from kafkafmt.storage.locations import AnyPath, Storages, is_uri, read_named, storage_path, writable_path
from kafkafmt.storage.paths import (
    StoragePath,
    limit_read_ahead,
    no_folder_reason,
    read_file,
    side_by_side,
    storage_of,
    write_file,
)
from kafkafmt.storage.remote import READ_AHEAD, RemotePath, RemoteStatus, RemoteStorage

__all__ = [
    "LOCAL",
    "READ_AHEAD",
    "AnyPath",
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
    "is_temporary_name",
    "is_uri",
    "limit_read_ahead",
    "no_folder_reason",
    "read_file",
    "read_named",
    "side_by_side",
    "stamp_of",
    "storage_of",
    "storage_path",
    "writable_path",
    "write_file",
]
