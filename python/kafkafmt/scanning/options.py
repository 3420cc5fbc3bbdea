"""What is read of logs, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.scanning.selection import Bound, TopicSelection
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.storage import RemotePath

DEFAULT_SPLIT_BYTES = 128 * 1024 * 1024
DEFAULT_BATCH_BYTES = 4 * 1024 * 1024


class OptionNames(NamedTuple):
    """How the user's interface calls options, for messages. By default, in Python and on the command line."""

    starting: str = "the start of offsets"
    ending: str = "the end of offsets"
    all_topics: str = "topics='*' (--topics '*')"
    check_overlaps: str = "check_overlaps=True (--check-overlaps)"
    max_decompressed: str = "max_decompressed_bytes"


DEFAULT_NAMES = OptionNames()


@dataclass(frozen=True)
class ReadColumns:
    """The columns of a read, in order, and the Arrow schema of its batches, which may name them differently."""

    columns: tuple[str, ...]
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class LogReadOptions:
    """What is read of logs, and how.

    paths: log directories, folders of partitions, segments, patterns and URIs, as `list_segments` takes them.
    file_system: options for the file system of every URI, as for `list_segments`. They may contain credentials.
    unit: `records` or `batches`, what a row is.
    topic_partition: the partition of folders that are not named as one.
    on_corrupt: `fail`; `skip`, with a warning; or `keep` damage as rows of batches.
    verify: check the CRC of every batch.
    from_segment_start: ignore `log-start-offset-checkpoint`, so that deleted records are read.
    checks_overlaps: whether planning looks up the end of each segment; None: only of local ones.
    split_bytes: about the bytes of a task. max_batch_bytes: about the size of an Arrow batch.
    """

    paths: tuple[str | RemotePath, ...] = field(repr=False)  # URIs may have credentials
    unit: str = "records"
    topics: TopicSelection = field(default_factory=TopicSelection)
    topic_partition: TopicPartition | None = None
    starting: Bound = field(default_factory=Bound)
    ending: Bound = field(default_factory=Bound)
    isolation: str = "read_uncommitted"
    on_corrupt: str = "fail"
    verify: bool = True
    from_segment_start: bool = False
    checks_overlaps: bool | None = None
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    split_bytes: int = DEFAULT_SPLIT_BYTES
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    file_system: Mapping[str, str] = field(default_factory=dict, repr=False)
    names: OptionNames = DEFAULT_NAMES
