"""All segments of a log directory found, as verify and convert do: a partition costs the same, however many."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

from kafkafmt.cli.sources import find_sources
from kafkafmt.jobs.convert import plan


class Listing:
    params: ClassVar = [1_000, 10_000]
    param_names: ClassVar = ("partitions",)

    def setup(self, partitions: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        for number in range(partitions):
            folder = self.directory / f"t-{number}"
            folder.mkdir()
            (folder / f"{0:020d}.log").touch()

    def teardown(self, partitions: int) -> None:
        shutil.rmtree(self.directory)

    def time_find_sources(self, partitions: int) -> None:
        find_sources([str(self.directory)])

    def time_plan_of_convert(self, partitions: int) -> None:
        plan(self.directory, self.directory.with_name(f"{self.directory.name}-target"))
