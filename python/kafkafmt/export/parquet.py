"""A table of plain Parquet files in a folder, with folders as `timestamp_day=2026-11-26` for partitions.

Files are staged below `_kafkafmt`, with names that readers do not take for Parquet files. A run is committed by its
manifest, `_kafkafmt/commits/<number>.json`: the files and the offsets after it. Then its files are renamed to their
places, one after the other. If the process is killed meanwhile, the next run renames the rest first.

    {"format": 1, "run": "6f1c...", "offsets": {"orders": {"0": 1200}},
     "schema": "...", "partition_by": [], "files": [{"path": "part-6f1c-00000-0000.parquet", ...}]}
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kafkafmt._util.files import make_folder, sync_path
from kafkafmt.export.errors import ExportError, TableConflictError
from kafkafmt.export.manifest_content import ensure_manifest
from kafkafmt.export.partitioning import PartitionField, parse_partitioning
from kafkafmt.export.runs import PRIVATE_FOLDER, RunLease
from kafkafmt.export.schemas import merged_schema
from kafkafmt.export.tables import APPEND, DataFile, TableCommit, TableState, TableTraits
from kafkafmt.export.writing import below
from kafkafmt.storage import RemotePath, StoragePath, read_file, storage_of
from kafkafmt.types import TopicPartition

_COMMITS, _STAGED = "commits", "staged"
_FORMAT = 1
_SUFFIX = ".staged"


class ParquetTable:
    """A folder of Parquet files. See `kafkafmt.export.tables.TableCommitter`."""

    # Readers take the types of the first file, so no type can change.
    traits = TableTraits(has_partition_columns=False, has_hive_folders=True, staged_suffix=_SUFFIX)

    def __init__(self, folder: StoragePath) -> None:
        self._folder = folder
        self._private = folder / PRIVATE_FOLDER
        self._lease: RunLease | None = None
        self.data_folder = self._private

    @property
    def location(self) -> str:
        return str(self._folder)

    def begin(self, run: str) -> None:
        self._lease = lease = RunLease(self._folder, run)
        lease.take()
        self.data_folder = self._private / _STAGED / run
        _, content = self._last()
        if content is not None:
            self._publish(content)
        storage = storage_of(self._private)
        for name in self._numbers()[:-1]:
            storage.delete(self._private / _COMMITS / name)
        staged = self._private / _STAGED
        with contextlib.suppress(FileNotFoundError), storage.entries(staged) as entries:
            for name in [entry.name for entry in entries]:  # all are of killed runs: this one has not begun
                storage.delete_folder(staged / name)
        for dead in lease.dead:
            lease.forget(dead)

    def read_state(self, partitions: Collection[TopicPartition]) -> TableState:
        number, content = self._last()
        if content is None:
            return TableState({}, version=0, mode=APPEND)
        offsets = {
            TopicPartition(topic, int(partition)): offset
            for topic, of_topic in content["offsets"].items()
            for partition, offset in of_topic.items()
        }
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content["schema"])))
        fields = tuple(one for text in content["partition_by"] for one in parse_partitioning(text))
        return TableState(offsets, schema, fields, number, APPEND)

    def prepare(
        self, schema: pa.Schema, partitioning: Sequence[PartitionField], state: TableState
    ) -> TableState:
        if state.schema is None:
            self._ensure_no_others()
        merged = merged_schema(state.schema, schema, self.location, widens=self.traits.widens)
        return dataclasses.replace(state, schema=merged, partitioning=tuple(partitioning))

    def commit(self, commit: TableCommit, state: TableState) -> TableState:
        assert self._lease is not None
        assert state.schema is not None
        assert isinstance(state.version, int)
        self._lease.ensure_held()
        self._ensure_staged(commit)
        offsets: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted({**state.offsets, **commit.offsets}.items()):
            offsets.setdefault(topic, {})[str(partition)] = offset
        content = {
            "format": _FORMAT,
            "run": commit.run,
            "offsets": offsets,
            "schema": base64.b64encode(state.schema.serialize()).decode(),
            "partition_by": [str(one) for one in state.partitioning],
            "files": [
                {"path": file.path, "rows": file.rows, "size_in_bytes": file.size_in_bytes}
                for file in commit.files
            ],
        }
        number = state.version + 1
        path = self._private / _COMMITS / f"{number:020}.json"
        try:
            storage_of(path).write_new(path, [json.dumps(content).encode()])
        except FileExistsError:
            raise TableConflictError(
                f"{self.location}: another export has committed meanwhile: nothing was changed; run this again"
            ) from None
        self._publish(content)
        return dataclasses.replace(state, offsets={**state.offsets, **commit.offsets}, version=number)

    def abort(self, files: Sequence[DataFile]) -> None:
        storage_of(self.data_folder).delete_folder(self.data_folder)

    def end(self, *, is_known: bool = True) -> None:
        if self._lease is not None:
            self._lease.release(is_known=is_known)
            self._lease = None

    def _ensure_staged(self, commit: TableCommit) -> None:
        """Raise TableConflictError if files are missing: after the commit they would be taken for renamed ones."""
        staged = self._private / _STAGED / commit.run
        found = {name for name, _ in storage_of(staged).walk(staged)}
        missing = [file.path for file in commit.files if file.path + _SUFFIX not in found]
        if missing:
            raise TableConflictError(
                f"{staged}: expected {missing[0]}{_SUFFIX}, found no such file: another export has removed it "
                "meanwhile, or the task that wrote it ran on a machine with another folder of this name; nothing was "
                "changed"
            )

    def _publish(self, content: Mapping[str, Any]) -> None:
        """Rename staged files of a commit to their places. Those that are no longer staged were renamed."""
        staged = self._private / _STAGED / content["run"]
        storage = storage_of(staged)
        found = {name for name, _ in storage.walk(staged)}
        for path in (file["path"] for file in content["files"]):
            if path + _SUFFIX in found:
                _move(below(staged, path + _SUFFIX), below(self._folder, path))
        # Those of a killed run that has moved all files, too: it may not have made them durable.
        for parent in {below(self._folder, file["path"]).parent for file in content["files"]}:
            if isinstance(parent, Path):
                with contextlib.suppress(FileNotFoundError):  # a user may have removed a partition
                    sync_path(parent)
        storage.delete_folder(staged)

    def _numbers(self) -> list[str]:
        folder = self._private / _COMMITS
        with contextlib.suppress(FileNotFoundError), storage_of(folder).entries(folder) as entries:
            return sorted(one.name for one in entries if one.name.endswith(".json") and one.name[0] != ".")
        return []

    def _last(self) -> tuple[int, dict[str, Any] | None]:
        numbers = self._numbers()
        if not numbers:
            return 0, None
        path = self._private / _COMMITS / numbers[-1]
        try:
            content = json.loads(read_file(path))
            if content["format"] != _FORMAT:
                raise ExportError(f"{path}: expected format {_FORMAT}, found {content['format']!r}")
            ensure_manifest(content)
        except (ValueError, KeyError, TypeError):
            raise ExportError(f"{path}: expected the manifest of an export, found other content") from None
        return int(numbers[-1].partition(".")[0]), content

    def _ensure_no_others(self) -> None:
        """Raise ExportError for a folder with files of others: a new table would be mixed with them."""
        with (
            contextlib.suppress(FileNotFoundError),
            storage_of(self._folder).entries(self._folder) as entries,
        ):
            other = next((one.name for one in entries if one.name[0] not in "._"), None)
            if other is not None:
                raise ExportError(
                    f"{self.location}: expected a table of an export, or an empty folder, found {other!r}"
                )


def _move(source: StoragePath, target: StoragePath) -> None:
    if isinstance(source, RemotePath):
        assert isinstance(target, RemotePath)
        source.storage.copy(source, target)
        source.storage.delete(source)
    else:
        assert isinstance(target, Path)
        make_folder(target.parent)
        source.rename(target)
