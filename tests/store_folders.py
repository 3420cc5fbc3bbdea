"""Folders of the S3 server of the tests: their URIs, and copies from and to local folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from file_systems import BUCKET
from kafkafmt.storage import RemotePath, StoragePath, read_file, storage_of, storage_path, write_file


def uri_of(options: Mapping[str, str], name: str) -> str:
    """The URI of a folder of the bucket, with the settings of the server."""
    return f"s3://{BUCKET}/{name}?{urlencode(options)}"


def upload(folder: Path, uri: str) -> str:
    """Copy the files of a local folder to a URI, and return it."""
    target = storage_path(uri)
    for name, data in files_in(folder).items():
        write_file(target / name, data)
    return uri


def files_in(where: str | Path) -> dict[str, bytes]:
    """The names and contents of all files below a folder or URI."""
    root: StoragePath = storage_path(where)
    if isinstance(root, RemotePath):
        return {name: read_file(root / name) for name, _ in root.storage.walk(root)}
    return {name: read_file(root / name) for name, _ in storage_of(root).walk(root)}
