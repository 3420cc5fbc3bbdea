"""Logs that grow as a broker's do: bytes appended to the last segment, in pieces, segments rolled and deleted."""

from __future__ import annotations

from pathlib import Path

from kafkafmt.log.segment import segment_file_name
from log.samples import batch


class GrowingLog:
    """The folder of a partition. `ends` has the position behind each batch that was appended, by its next offset."""

    def __init__(self, folder: Path, base_offset: int = 0) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.next_offset = base_offset
        self.roll()

    def roll(self) -> Path:
        """Begin the next segment; a broker preallocates its indexes, full of zeros."""
        self.path = self.folder / segment_file_name(self.next_offset)
        for suffix in (".log", ".index", ".timeindex"):
            self.path.with_suffix(suffix).write_bytes(b"" if suffix == ".log" else bytes(1200))
        return self.path

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def append_batches(self, batches: int = 1, records: int = 10, **fields: object) -> None:
        for _ in range(batches):
            self.append(batch(self.next_offset, records, **fields))
            self.next_offset += records

    def delete_first(self) -> None:
        """Delete the first segment, as retention does."""
        first = min(self.folder.glob("*.log"))
        for path in self.folder.glob(f"{first.stem}.*"):
            path.unlink()
