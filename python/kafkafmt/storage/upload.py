"""Upload a whole file to a remote storage. It appears complete under its name, or not at all.

An object store publishes an object when its stream is closed. Elsewhere the file is written under a temporary name and
renamed. After that the size is compared with what was sent.

An upload with a condition keeps it also if this process is suspended for some time. An upload of several requests
cannot be given up, and may be completed long after it began. So such a file is first uploaded under a temporary name.
Then the condition is checked, and the file is copied within the store by one request.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NoReturn

from kafkafmt.records.remote import file_system_error, file_system_errors
from kafkafmt.records.retries import Retries

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

OBJECT_STORES = ("s3", "gcs", "abfs")
_COPY_BYTES = 1024 * 1024
# Parts of an upload that the store has not answered yet are in memory, up to this size.
_PENDING_BYTES = 64 * 1024 * 1024
_FAILURE = "cannot be written"
# PyArrow uploads an object of fewer bytes by one request.
_ONE_REQUEST_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True)
class Upload:
    """An upload to `path`, whose URI is for errors. Failed attempts are repeated from the start of the file.

    unless: the path of a file whose presence forbids the upload, except if it is empty. It is looked up immediately
    before the file is published. If it is `path`, a file with the same bytes is no error: the answer to an earlier
    attempt may be lost.
    ensure: called immediately before the file is published, too. Its OtherWriterError forbids the upload.
    """

    filesystem: FileSystem
    path: str
    uri: str
    retries: Retries
    unless: str | None = None
    ensure: Callable[[], None] | None = None

    def run(self, source: IO[bytes], size: int) -> None:
        """Upload the first `size` bytes of a local file. Raises OSError; then an object of a wrong size is deleted.

        Raises FileExistsError if the file `unless` is there, and OtherWriterError of `ensure`.
        """
        written, has_condition = self.path, self.unless is not None or self.ensure is not None
        if not self._is_object_store or (has_condition and size >= _ONE_REQUEST_BYTES):
            folder, _, name = self.path.rpartition("/")
            written = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
        try:
            self.retries.run(lambda: self._attempt(source, size, written), _FAILURE, self.uri)
        except file_system_errors() as error:
            # Other errors leave the object as it was before: its upload was not completed.
            cause = error.__cause__ or error
            has_wrong_size = isinstance(cause, _WrongSizeError)
            if has_wrong_size or isinstance(cause, _SourceError) or written != self.path:
                with contextlib.suppress(*file_system_errors()):
                    self.filesystem.delete_file(self.path if has_wrong_size else written)
            if isinstance(error, FileExistsError | OtherWriterError):
                raise
            raise file_system_error(error, _FAILURE, self.uri) from error

    @property
    def _is_object_store(self) -> bool:
        return self.filesystem.type_name in OBJECT_STORES

    def _attempt(self, source: IO[bytes], size: int, written: str) -> None:
        if self._is_there(source, size):
            return
        if not self._is_object_store:
            self.filesystem.create_dir(posixpath.dirname(self.path))
        # As it is: PyArrow would compress a file whose name ends in .zst or .gz.
        with self.filesystem.open_output_stream(written, compression=None) as stream:
            for position in range(0, size, _COPY_BYTES):
                stream.write(_read(source, position, min(size - position, _COPY_BYTES)))
                if (position + _COPY_BYTES) % _PENDING_BYTES == 0:
                    stream.flush()
        if written != self.path:
            if self._is_there(source, size):
                self.filesystem.delete_file(written)
                return
            self._rename(written)
        stored = self.filesystem.get_file_info(self.path).size or 0
        if (
            stored > size and self.unless == self.path
        ):  # no store adds bytes, so another writer has replaced it
            self._raise_exists()
        if stored != size:
            if self.unless is not None:  # the next attempt would take it for that of another writer
                self.filesystem.delete_file(self.path)
            raise _WrongSizeError(f"expected {size} bytes in the store, found {stored}")

    def _is_there(self, source: IO[bytes], size: int) -> bool:
        """Return whether the file is there already. Raises FileExistsError or OtherWriterError if it is forbidden."""
        if self.ensure is not None:
            self.ensure()
        if self.unless is None:
            return False
        found = self.filesystem.get_file_info(self.unless)
        if not found.is_file or not found.size:
            return False
        if self.unless != self.path or found.size != size or not self._has_bytes(source, size):
            self._raise_exists()
        return True

    def _raise_exists(self) -> NoReturn:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.unless)

    def _has_bytes(self, source: IO[bytes], size: int) -> bool:
        with self.filesystem.open_input_stream(self.path, compression=None) as stored:
            return all(
                stored.read(_COPY_BYTES) == _read(source, position, min(size - position, _COPY_BYTES))
                for position in range(0, size, _COPY_BYTES)
            )

    def _rename(self, written: str) -> None:
        if self._is_object_store:
            self.filesystem.copy_file(written, self.path)
            self.filesystem.delete_file(written)
            return
        self.filesystem.move(written, self.path)


class OtherWriterError(OSError):
    """Another process writes to the folder of an upload."""


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
