"""Folders of the S3 server of the tests: their URIs, copies from local folders, and commands that are killed."""

from __future__ import annotations

import subprocess
import sys
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


_KILLED = """
import os, sys
from kafkafmt.storage.remote import RemoteStorage
left, steps = int(sys.argv.pop(1)), []
def counted(request):
    def call(*arguments):
        steps.append(None)  # by several threads
        if len(steps) > left:
            os._exit(9)
        return request(*arguments)
    return call
RemoteStorage._upload, RemoteStorage.delete = map(counted, (RemoteStorage._upload, RemoteStorage.delete))
from kafkafmt.cli import main
try:
    main()
finally:
    print(len(steps), file=sys.stderr)
"""
NEVER = 1_000_000
KILLED = 9


def run_killed(steps: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that ends before its next upload or deletion, after `steps` of them.

    If it is not killed, its last line on stderr is their number.
    """
    line = [sys.executable, "-c", _KILLED, str(steps), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=500, check=False)


def steps_of(*arguments: object) -> int:
    """Run a command, which is not killed, and return the number of its uploads and deletions."""
    done = run_killed(NEVER, *arguments)
    assert done.returncode in (0, 1), done.stderr
    return int(done.stderr.splitlines()[-1])
