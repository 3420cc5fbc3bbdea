"""A repair of a sound log and of one with damage, beside a floor: the bytes are copied, and their CRC-32C is computed.

Segments of uncompressed batches, of 16 KiB and of one record. Both write to the same file system, and make it durable.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

from kafkafmt import RecordBatchBuilder, crc32c
from kafkafmt.jobs.repair import repair
from kafkafmt.log import PartitionLogWriter

_LOG_BYTES = 128 * 1024 * 1024
_RECORDS = {"16 KiB": 150, "one record": 1}
_DAMAGED = 1_000_000  # a byte in the middle of a batch


class Repairing:
    params: ClassVar = (["16 KiB", "one record"], ["sound", "damaged"])
    param_names: ClassVar = ("batches", "log")
    timeout = 300

    def setup(self, batches: str, log: str) -> None:
        self.directory = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        folder = self.directory / "logs" / "orders-0"
        records, offset, size = _RECORDS[batches], 0, 0
        with PartitionLogWriter(folder) as writer:
            while size < _LOG_BYTES:
                parts = []
                for _ in range(1000):
                    builder = RecordBatchBuilder(base_offset=offset)
                    for _ in range(records):
                        builder.append(
                            1_700_000_000_000 + offset, b"key-%d" % offset, b"value-%d " % offset * 8
                        )
                        offset += 1
                    parts.append(bytes(builder.build()))
                    if size + sum(map(len, parts)) >= _LOG_BYTES:
                        break
                data = b"".join(parts)
                size += len(data)
                writer.append(data)
        self.segments = sorted(folder.glob("*.log"))
        if log == "damaged":
            with self.segments[0].open("r+b") as file:
                file.seek(_DAMAGED)
                file.write(b"damage")
        self.round = 0

    def teardown(self, batches: str, log: str) -> None:
        shutil.rmtree(self.directory)

    def time_copy_and_crc(self, batches: str, log: str) -> None:
        target = self.directory / f"copy-{self.round}"
        self.round += 1
        with target.open("wb") as file:
            for segment in self.segments:
                with segment.open("rb") as source:
                    while data := source.read(1024 * 1024):
                        crc32c(data)
                        file.write(data)
            file.flush()
            os.fsync(file.fileno())
        target.unlink()

    def time_repair(self, batches: str, log: str) -> None:
        target = self.directory / f"repaired-{self.round}"
        self.round += 1
        repair(self.directory / "logs", target)
        shutil.rmtree(target)
