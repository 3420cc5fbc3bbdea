"""Target: conversion between formats, eager and lazy.

Input: four bytes of options, then a record set. Whatever the bytes are:

- converting and then decoding is decoding and then converting row by row;
- damage is never converted, but where the batch needs no decoding: it is dropped, or copied as it is;
- the chunks of a lazy conversion are the bytes of the eager one (to v2, which gathers messages, its records),
  each within twice the chunk size or what one batch converts to; but for batches at the front that say to lie
  below the first offset: the lazy one passes over them unread;
- with another codec, alone or beside another format, the rows are what they are without, or the batch is refused;
- a send writes `size_in_bytes` to the byte, however little the channel takes a call; it begins with the eager
  conversion's bytes, cut where they are more.
"""

from __future__ import annotations

import kafkafmt as kf
import reference as ref
from fuzz.oracle import (
    MAX_DECOMPRESSED_BYTES,
    batches_before_damage,
    memory_records,
    outcome,
    rows_before_damage,
    trusting_codecs,
    until_error,
)
from kafkafmt.convert.engine import GATHERED_BATCH_BYTES
from records.samples import as_row, as_rows, converted_rows, sent, without_sequence
from reference import Row

OPTIONS_LENGTH = 4
CHUNK_SIZES = (1, 64, 100, 256, 1024, 131072)
CODECS = tuple(kf.Codec)
FALLBACKS = (None, kf.Codec.LZ4, kf.Codec.NONE, kf.Codec.GZIP)


class Options:
    """How to convert, as the first bytes of an input say."""

    def __init__(self, data: bytes) -> None:
        data = data[:OPTIONS_LENGTH].ljust(OPTIONS_LENGTH, b"\0")
        self.to_magic = data[0] % 3
        self.verify = data[0] < 0x80
        self.zstd_fallback = FALLBACKS[data[1] % len(FALLBACKS)]
        self.chunk_size = CHUNK_SIZES[data[2] % len(CHUNK_SIZES)]
        self.first_offset = data[3] if data[3] < 32 else 0
        self.codec = CODECS[data[1] % len(CODECS)]

    def eager(self, data: bytes) -> kf.Records | None:
        records = memory_records(data)
        fallback, verify = self.zstd_fallback, self.verify
        return outcome(
            lambda: (
                records.down_convert(
                    self.to_magic, self.first_offset, zstd_fallback=fallback, verify=verify
                ).records
            )
        )

    def lazy(self, data: bytes) -> kf.LazyDownConvertRecords | None:
        return outcome(
            lambda: kf.LazyDownConvertRecords(
                memory_records(data),
                self.to_magic,
                self.first_offset,
                chunk_size=self.chunk_size,
                zstd_fallback=self.zstd_fallback,
                verify=self.verify,
            )
        )


def check(data: bytes) -> None:
    options, data = Options(data), data[OPTIONS_LENGTH:]
    with trusting_codecs():
        eager = options.eager(data)
        _check_eager(options, data, eager)
        _check_lazy(options, data, eager)
        for to_magic in (None, options.to_magic):
            _check_codec(options, data, to_magic)


def _check_codec(options: Options, data: bytes, to_magic: int | None) -> None:
    rows, is_damaged = rows_before_damage(data, verify=True)
    if to_magic is not None and to_magic < 2 and options.codec == kf.Codec.ZSTD:
        return
    conversion = kf.ConversionOptions(
        to_magic, options.first_offset, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES, codec=options.codec
    )
    chunks, error = until_error(
        bytes(chunk)
        for chunk in kf.ConvertedChunks(memory_records(data), conversion, chunk_size=options.chunk_size)
    )
    if is_damaged or error is not None or any(map(is_of_no_broker, ref.read(data))):
        return
    found = as_rows(memory_records(b"".join(chunks)).records(control=True))
    expected = rows if to_magic is None else converted_rows(data, to_magic, options.first_offset)
    assert found == expected, f"{found} != {expected}"


def is_of_no_broker(batch: ref.Batch) -> bool:
    """Has it records below offset 0, or in a wrapper messages of another format than its own?"""
    rows = batch.rows()
    is_mixed = batch.magic < 2 and any((row.timestamp_type == -1) != (batch.magic == 0) for row in rows)
    is_stamped = batch.magic == 0 and any(row.timestamp != -1 for row in rows)
    return is_mixed or is_stamped or any(row.offset < 0 for row in rows)


def _check_eager(options: Options, data: bytes, eager: kf.Records | None) -> None:
    _, is_damaged = rows_before_damage(data, verify=True)
    if is_damaged:
        assert eager is None or not options.verify or _needs_no_decoding(data, options)
    elif eager is not None:
        found = as_rows(eager.records(control=True))
        expected = converted_rows(data, options.to_magic, options.first_offset)
        assert found == expected, f"{found} != {expected}"


def _needs_no_decoding(data: bytes, options: Options) -> bool:
    """Are all CRCs right, and what cannot be decoded is only copied, old enough as it is, or dropped?"""
    batches, is_damaged = batches_before_damage(data)
    for batch in batches:
        is_copied = batch.magic <= options.to_magic and (batch.magic == 2 or options.to_magic < 2)
        try:
            batch.rows()
        except ref.Damaged:
            if not (batch.crc_holds and (is_copied or _is_dropped(batch, options))):
                return False
    return not is_damaged


def _is_dropped(batch: ref.Batch, options: Options) -> bool:
    return batch.is_control and options.to_magic < 2


def _check_lazy(options: Options, data: bytes, eager: kf.Records | None) -> None:
    lazy = options.lazy(data)
    if lazy is None:
        assert eager is None
        return
    chunks, error = until_error(bytes(chunk) for chunk in lazy.chunks())
    whole = b"".join(chunks)
    if not _says_less_than_it_holds(options, data):
        assert (error is not None) == (eager is None), error
        if eager is not None and options.to_magic < 2:
            assert whole == bytes(eager.buffer)
        elif eager is not None:
            assert _rows_of(memory_records(whole), options) == _rows_of(eager, options)
    _check_bound(options, data, chunks)
    _check_send(lazy, whole)


def _rows_of(records: kf.Records, options: Options) -> list[Row]:
    """The rows in front of damage, which was copied as it was."""
    rows, _ = until_error(as_row(record) for record in records.records(verify=options.verify, control=True))
    return without_sequence(rows)


def _says_less_than_it_holds(options: Options, data: bytes) -> bool:
    """Is there a batch below the first offset, as its header says, that has records above it or cannot be read?"""
    for batch in batches_before_damage(data)[0]:
        if batch.codec == ref.NONE and batch.last_offset < options.first_offset:
            try:
                if any(row.offset >= options.first_offset for row in batch.rows(verify=False)):
                    return True
            except ref.Damaged:
                return True
    return False


def _check_bound(options: Options, data: bytes, chunks: list[bytes]) -> None:
    bound = 2 * options.chunk_size
    if options.to_magic == 2:
        bound = max(bound, 2 * GATHERED_BATCH_BYTES)
    for number, chunk in enumerate(chunks):
        if len(chunk) > bound:
            allowed = _largest_conversion(options, data)
            assert len(chunk) <= max(bound, allowed), f"chunk {number}: {len(chunk)} > {bound}, {allowed}"


def _largest_conversion(options: Options, data: bytes) -> int:
    """The most that one batch converts to."""
    converted = [options.eager(batch.data) for batch in batches_before_damage(data)[0]]
    return max((one.size_in_bytes for one in converted if one is not None), default=0)


def _check_send(lazy: kf.LazyDownConvertRecords, whole: bytes) -> None:
    for limits in ((), (0, 1, 50)):
        got = sent(lazy, *limits)
        assert len(got) == lazy.size_in_bytes
        assert got[: len(whole)] == whole[: len(got)]
