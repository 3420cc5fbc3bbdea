"""Find and read the generations of a backup: the last one, or one by name, by number, or by time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from kafkafmt.storage.backups.errors import BackupError, MissingGenerationError
from kafkafmt.storage.backups.json_fields import Fields
from kafkafmt.storage.backups.manifest import (
    BACKUP_FILE,
    FORMAT_VERSION,
    GENERATIONS_FOLDER,
    Manifest,
    is_generation_name,
)
from kafkafmt.storage.paths import StoragePath, read_file, storage_of

GENERATION_SUFFIX = ".json.zst"
_MOST_NUMBER_DIGITS = 19
_T = TypeVar("_T")


@dataclass(frozen=True)
class Identity:
    """What `kafkafmt-backup.json` says. id: a random text, which encrypted chunks are bound to."""

    id: str
    created_ms: int


def read_identity(folder: StoragePath) -> Identity:
    """Read the identity of the backup in a folder. Raises BackupError if there is none, and OSError."""
    path = folder / BACKUP_FILE
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BackupError(f"{path}: expected the identity of a backup, found no such file") from None
    return parse_identity(data, str(path))


def parse_identity(data: bytes, name: str) -> Identity:
    """Parse the identity of a backup. name: of the object, for errors. Raises BackupError."""
    fields = Fields.parse(data, name)
    if fields.integer("version", 1) > FORMAT_VERSION:
        fields.refuse("version", f"{FORMAT_VERSION}, the latest format that this version of kafkafmt reads")
    return Identity(fields.text("id"), fields.integer("created_ms"))


def is_backup(folder: StoragePath) -> bool:
    """Whether a folder is that of a backup. Raises OSError if that cannot be found out."""
    return (folder / BACKUP_FILE).is_file()


def generation_path(folder: StoragePath, name: str) -> StoragePath:
    """Return the path of the manifest of a generation."""
    return folder / GENERATIONS_FOLDER / f"{name}{GENERATION_SUFFIX}"


def generation_names(folder: StoragePath) -> list[str]:
    """Return the names of all generations, the last one last. Raises OSError."""
    place = folder / GENERATIONS_FOLDER
    names: list[str] = []
    with suppress(FileNotFoundError), storage_of(place).entries(place) as entries:
        names = [
            entry.name.removesuffix(GENERATION_SUFFIX)
            for entry in entries
            if entry.name.endswith(GENERATION_SUFFIX)
        ]
    return sorted(filter(is_generation_name, names))


def read_generation(folder: StoragePath, name: str) -> Manifest:
    """Read the manifest of a generation.

    Raises MissingGenerationError, BackupError if it is malformed or that of another generation, and OSError.
    """
    path = generation_path(folder, name)
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise MissingGenerationError(
            f"{path}: expected the manifest of a generation, found no such file"
        ) from None
    manifest = Manifest.decode(data, str(path))
    if manifest.name != name:
        raise BackupError(f"{path}: name: expected generation {name}, found {manifest.name}")
    return manifest


def choose_generation(folder: StoragePath, wanted: str | None = None) -> str:
    """Return the name of a generation.

    wanted: a name; a number; or a time in ISO 8601, UTC without an offset: then the last generation that was created at
    or before it. By default the last one. Raises BackupError if there is no such generation, and OSError.
    """
    return read_listed(folder, lambda names: _chosen(folder, names, wanted))


def read_chosen(folder: StoragePath, wanted: str | None = None, known: Manifest | None = None) -> Manifest:
    """Read the generation that `choose_generation` returns. `known` is returned if it is of that generation.

    Raises BackupError and OSError.
    """

    def read(names: list[str]) -> Manifest:
        name = _chosen(folder, names, wanted)
        if known is not None and known.name == name:
            return known
        try:
            return read_generation(folder, name)
        except MissingGenerationError:
            raise
        except BackupError as error:
            if wanted is not None or name == names[0]:
                raise
            earlier = names[names.index(name) - 1]
            raise BackupError(
                f"{error}; the generation before it is {earlier}: restore --generation {earlier}, or "
                f"backup+URI?generation={earlier}, reads it"
            ) from None

    return read_listed(folder, read)


def read_listed(folder: StoragePath, read: Callable[[list[str]], _T]) -> _T:
    """Call `read` with the names of all generations, and again if one of them was deleted meanwhile.

    Raises MissingGenerationError if a manifest is missing that the next listing still has.
    """
    names = generation_names(folder)
    while True:
        try:
            return read(names)
        except MissingGenerationError:
            earlier, names = names, generation_names(folder)
            if names == earlier:
                raise


def _chosen(folder: StoragePath, names: list[str], wanted: str | None) -> str:
    if not names:
        raise BackupError(f"{folder}: expected a generation of a backup, found none")
    if wanted is None:
        return names[-1]
    if wanted in names:
        return wanted
    if wanted.isascii() and wanted.isdecimal() and len(wanted) <= _MOST_NUMBER_DIGITS:
        found = [name for name in names if int(name.partition("-")[0]) == int(wanted)]
        if found:
            return found[-1]
    elif not is_generation_name(wanted):
        at_ms = _time_ms(wanted)
        for name in reversed(names):
            if read_generation(folder, name).created_ms <= at_ms:
                return name
        raise BackupError(
            f"{folder}: no generation was created at or before {wanted}; the first is {names[0]}"
        )
    raise BackupError(f"{folder}: no generation {wanted}: there are {names[0]} to {names[-1]}")


def _time_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
    except ValueError:
        raise BackupError(
            f"generation: expected the name of a generation, its number, or a time as 2026-01-31T12:00:00Z, "
            f"found {text!r}"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    return int(time.timestamp() * 1000)
