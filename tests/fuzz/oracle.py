"""What the targets share: the reference's reading, and the family of errors that data may cause.

Decompression has a target of its own; here the reference decompresses with the library's codecs, so that the
two agree on which payloads are damaged and all else can be compared exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar
from unittest import mock

import kafkafmt as kf
import reference as ref
from kafkafmt import codecs
from reference import Row

# What a batch may decompress to: small, so that a bomb is found out for its size and not for its slowness.
MAX_DECOMPRESSED_BYTES = 1 << 20

_Result = TypeVar("_Result")


def outcome(action: Callable[[], _Result]) -> _Result | None:
    """What an action returns, or None where it raises a documented error; any other exception is a finding."""
    try:
        return action()
    except kf.KafkaFormatError:
        return None


def _decompress(codec: int, data: bytes) -> bytes:
    try:
        return bytes(codecs.decompress(codec, data, limit=MAX_DECOMPRESSED_BYTES))
    except kf.KafkaFormatError as error:
        raise ref.Damaged("payload") from error


def trusting_codecs() -> mock._patch:
    """The reference with the library's codecs."""
    return mock.patch.object(ref, "decompress", _decompress)


def batches_before_damage(data: bytes) -> tuple[list[ref.Batch], bool]:
    """The batches that the reference finds, and whether it stopped for damage."""
    batches: list[ref.Batch] = []
    try:
        for batch in ref.read(data):
            batches.append(batch)  # noqa: PERF402, those before the damage are kept
    except ref.Damaged:
        return batches, True
    return batches, False


def rows_before_damage(data: bytes, *, verify: bool) -> tuple[list[Row], bool]:
    """The rows of the batches in front of the first that is damaged, and whether there is one."""
    rows: list[Row] = []
    batches, is_damaged = batches_before_damage(data)
    for batch in batches:
        try:
            rows += batch.rows(verify=verify)
        except ref.Damaged:
            return rows, True
    return rows, is_damaged


def memory_records(data: bytes) -> kf.MemoryRecords:
    return kf.MemoryRecords(data, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)


def until_error(items: Iterator[_Result]) -> tuple[list[_Result], kf.KafkaFormatError | None]:
    """All items in front of a documented error, and the error."""
    found: list[_Result] = []
    try:
        for item in items:
            found.append(item)  # noqa: PERF402
    except kf.KafkaFormatError as error:
        return found, error.with_traceback(None)
    return found, None
