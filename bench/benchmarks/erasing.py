"""Records erased from a segment, and the proof, beside reading its keys: with no erased key, and one in each batch."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

from _kafkafmt.records.key_table import KeySet
from kafkafmt import Codec, RecordBatchBuilder
from kafkafmt.jobs.erase import EraseOptions, EraseTarget, erase_segment, prove_segment
from kafkafmt.log import PartitionLogWriter

_BATCHES, _RECORDS = 100, 1000


class Erasing:
    params: ClassVar = (["none", "zstd"], ["absent", "in each batch"])
    param_names: ClassVar = ("codec", "keys")

    def setup(self, codec: str, keys: str) -> None:
        self.directory = Path(tempfile.mkdtemp())
        with PartitionLogWriter(self.directory / "logs" / "orders-0") as writer:
            for number in range(_BATCHES):
                builder = RecordBatchBuilder(codec=Codec[codec.upper()], base_offset=number * _RECORDS)
                for i in range(_RECORDS):
                    builder.append(1_700_000_000_000 + i, b"key-%d" % i, b"value-%d " % i * 10)
                writer.append(builder.build())
        self.options = EraseOptions(
            KeySet([b"key-17"] if keys == "in each batch" else [b"absent"]), force=True
        )
        (self.task,) = EraseTarget(self.directory / "proven").plan(self.directory / "logs")
        erase_segment(self.task, self.options)
        self.round = 0

    def teardown(self, codec: str, keys: str) -> None:
        shutil.rmtree(self.directory)

    def time_read_keys(self, codec: str, keys: str) -> None:
        with self.task.segment.open() as records:
            records.to_numpy(("key",))

    def time_erase(self, codec: str, keys: str) -> None:
        self.round += 1
        (task,) = EraseTarget(self.directory / f"round-{self.round}").plan(self.directory / "logs")
        erase_segment(task, self.options)

    def time_prove(self, codec: str, keys: str) -> None:
        proof = prove_segment(self.task, self.options)
        assert proof.error is None
