"""Target: the metadata of a cluster.

Input: a byte of options (bit 0: a snapshot, or a log), then a record set. Whatever the bytes are:

- reading raises documented errors alone;
- what is read becomes rows, and says no more than the records did: the end offset is within the bound;
- a snapshot in a folder that is damaged is no error there: the folder is read without it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fuzz.oracle import outcome
from kafkafmt.log import cluster_metadata

OPTIONS_LENGTH = 1
SNAPSHOT = f"{9:020}-{1:010}.checkpoint"


def check(data: bytes) -> None:
    options, body = data[:OPTIONS_LENGTH].ljust(OPTIONS_LENGTH, b"\0"), data[OPTIONS_LENGTH:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options[0] & 1:
            (folder / SNAPSHOT).write_bytes(body)
            found = outcome(lambda: cluster_metadata(folder / SNAPSHOT))
            in_folder = cluster_metadata(folder)
            assert (in_folder.snapshot_offset is None) == (found is None)
            assert bool(in_folder.warnings) or found is not None
        else:
            (folder / f"{0:020}.log").write_bytes(body)
            found = outcome(lambda: cluster_metadata(folder))
            for end_offset in (0, 3):
                bounded = outcome(lambda end=end_offset: cluster_metadata(folder, end_offset=end))
                assert bounded is None or bounded.end_offset <= end_offset
        if found is not None:
            assert list(found.rows("cluster"))
            for row in found.rows():
                assert row["kind"]
