"""Check the content of a manifest of a table of Parquet files before it is used: it may be damaged, or another file."""

from __future__ import annotations

import base64
import re
from typing import Any

import pyarrow as pa

from kafkafmt.export.partitioning import parse_partitioning

_RUN = re.compile(r"[0-9a-f]{32}")


def ensure_manifest(content: Any) -> None:
    """Raise ValueError for JSON that is not a manifest of an export.

    The run and the paths of files are names below the folder of the table. So nothing else is renamed or removed.
    """
    try:
        if not _RUN.fullmatch(content["run"]):
            raise ValueError("expected the name of a run")
        for file in content["files"]:
            if not {"", ".", ".."}.isdisjoint(file["path"].split("/")):
                raise ValueError("expected a path below the folder of the table")
        for of_topic in content["offsets"].values():
            if not all(int(partition) >= 0 and type(of_topic[partition]) is int for partition in of_topic):
                raise ValueError("expected offsets by partition")
        for text in content["partition_by"]:
            parse_partitioning(text)
        _ensure_schema(base64.b64decode(content["schema"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def _ensure_schema(data: bytes) -> None:
    try:
        pa.ipc.read_schema(pa.py_buffer(data))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(str(error)) from None
