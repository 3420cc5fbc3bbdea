"""Upload a whole file to a remote storage. It appears complete under its name, or not at all.

An object store publishes an object when its stream is closed. Elsewhere the file is written under a temporary name and
renamed. After that the size is compared with what was sent.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from kafkafmt.records.remote import file_system_error, file_system_errors
from kafkafmt.records.retries import Retries

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

OBJECT_STORES = ("s3", "gcs", "abfs")
_COPY_BYTES = 1024 * 1024
# Parts of an upload that the store has not answered yet are in memory, up to this size.
_PENDING_BYTES = 64 * 1024 * 1024
_FAILURE = "cannot be written"


@dataclass(frozen=True)
class Upload:
    """An upload to `path`, whose URI is for errors. Failed attempts are repeated from the start of the file."""

    filesystem: FileSystem
    path: str
    uri: str
    retries: Retries

    def run(self, source: IO[bytes], size: int) -> None:
        """Upload the first `size` bytes of a local file. Raises OSError; then an object of a wrong size is deleted."""
        written = self.path
        if self.filesystem.type_name not in OBJECT_STORES:
            folder, _, name = self.path.rpartition("/")
            written = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
        try:
            self.retries.run(lambda: self._attempt(source, size, written), _FAILURE, self.uri)
        except file_system_errors() as error:
            # Other errors leave the object as it was before: its upload was not completed.
            is_wrong = isinstance(error.__cause__ or error, _WrongSizeError | _SourceError)
            if is_wrong or written != self.path:
                with contextlib.suppress(*file_system_errors()):
                    self.filesystem.delete_file(self.path if is_wrong else written)
            raise file_system_error(error, _FAILURE, self.uri) from error

    def _attempt(self, source: IO[bytes], size: int, written: str) -> None:
        if written != self.path:
            self.filesystem.create_dir(posixpath.dirname(self.path))
        # As it is: PyArrow would compress a file whose name ends in .zst or .gz.
        with self.filesystem.open_output_stream(written, compression=None) as stream:
            for position in range(0, size, _COPY_BYTES):
                stream.write(_read(source, position, min(size - position, _COPY_BYTES)))
                if (position + _COPY_BYTES) % _PENDING_BYTES == 0:
                    stream.flush()
        if written != self.path:
            self._rename(written)
        stored = self.filesystem.get_file_info(self.path).size or 0
        if stored != size:
            raise _WrongSizeError(f"expected {size} bytes in the store, found {stored}")

    def _rename(self, written: str) -> None:
        if self.filesystem.type_name == "hdfs":  # it does not rename to a name that exists
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(self.path)
        self.filesystem.move(written, self.path)


class _WrongSizeError(ConnectionError):
    """The store has another size than was sent. The next attempt replaces it."""


class _SourceError(OSError):
    """The local file cannot be read."""


def _read(source: IO[bytes], position: int, size: int) -> bytes:
    try:
        source.seek(position)
        data = source.read(size)
    except OSError as error:
        raise _SourceError(f"the local file cannot be read: {error}") from error
    if len(data) < size:
        raise _SourceError(
            f"the local file has become shorter: expected {size} bytes at position {position}, found {len(data)}"
        )
    return data
