"""What a row cannot be faster than: moving the bytes, the codec's own work, the CRC alone, one thread."""

from __future__ import annotations

import ctypes
import subprocess
import zlib
from collections.abc import Callable

import lz4.frame
import numpy as np
from cramjam import snappy
from isal import igzip_lib, isal_zlib

from _kafkafmt.wire.layout import CRC_OFFSET, RECORD_BATCH_OVERHEAD
from bench import BUILD
from bench.peers import ours
from bench.peers.protocol import Prepare, Run, Tally, serve
from kafkafmt import Codec, MemoryRecords, codecs

SOURCE = "bench/peers/crc_floor.c"
GZIP_WINDOW_BITS = zlib.MAX_WBITS + 16
XERIAL_HEADER_LENGTH, XERIAL_BLOCK_BYTES, XERIAL_SIZE_LENGTH = 16, 32 * 1024, 4


def memcpy(data: bytes) -> Run:
    source = np.frombuffer(data, np.uint8)
    target = np.ones(len(data), np.uint8)

    def run() -> Tally:
        np.copyto(target, source)
        return Tally(len(target))

    return run


def codec(data: bytes) -> Run:
    """Decompress every payload, and compress what its conversion to v1 compresses: no more than the library's calls."""
    batches = list(MemoryRecords(data).batches())
    kind = batches[0].codec
    sources = [bytes(batch.buffer[RECORD_BATCH_OVERHEAD:]) for batch in batches]
    converted = [_messages_of(batch.buffer) for batch in batches]
    decompress, compress = LIBRARIES[kind]

    def run() -> Tally:
        produced = 0
        for source, messages in zip(sources, converted, strict=True):
            decompress(source)
            produced += compress(messages)
        return Tally(len(sources), produced)

    return run


def _messages_of(batch: memoryview) -> bytes:
    """The inner messages that the batch becomes in v1, before they are compressed."""
    (wrapper,) = MemoryRecords(batch).down_convert(1).records.batches()
    return bytes(codecs.decompress(wrapper.codec, wrapper.run.payload(0), magic=1))


def _lz4_compress(messages: bytes) -> int:
    block_size = lz4.frame.BLOCKSIZE_MAX64KB
    return len(lz4.frame.compress(messages, block_size=block_size, block_linked=False, store_size=False))


def _snappy_decompress(source: bytes) -> bytearray:
    """Of one xerial block, which batches of up to 32 KiB have."""
    block = memoryview(source)[XERIAL_HEADER_LENGTH + XERIAL_SIZE_LENGTH :]
    output = bytearray(snappy.decompress_raw_len(block))
    snappy.decompress_raw_into(block, output)
    return output


def _snappy_compress(messages: bytes) -> int:
    assert len(messages) <= XERIAL_BLOCK_BYTES
    output = bytearray(snappy.compress_raw_max_len(messages))
    return int(snappy.compress_raw_into(messages, output))


def _gzip_compress(messages: bytes) -> int:
    return len(isal_zlib.compress(messages, 2, GZIP_WINDOW_BITS))


def _gzip_decompress(source: bytes) -> bytes:
    return igzip_lib.decompress(source, flag=igzip_lib.DECOMP_GZIP)


LIBRARIES: dict[Codec, tuple[Callable[[bytes], object], Callable[[bytes], int]]] = {
    Codec.LZ4: (lz4.frame.decompress, _lz4_compress),
    Codec.SNAPPY: (_snappy_decompress, _snappy_compress),
    Codec.GZIP: (_gzip_decompress, _gzip_compress),
}


def isal_crc(data: bytes) -> Run:
    """The CRCs of all batches, whose places are known beforehand, by ISA-L."""
    library = ctypes.CDLL(_compiled())
    library.valid_batches.restype = ctypes.c_int64
    index = MemoryRecords(data).index()
    positions = np.ascontiguousarray(index["position"], np.int64)
    sizes = np.ascontiguousarray(index["size"], np.int32)
    pointers = [positions.ctypes.data_as(ctypes.c_void_p), sizes.ctypes.data_as(ctypes.c_void_p)]

    def run() -> Tally:
        count = library.valid_batches(
            ctypes.c_char_p(data), *pointers, ctypes.c_int64(len(index)), CRC_OFFSET, CRC_OFFSET + 4
        )
        return Tally(count)

    return run


def _compiled() -> str:
    output = BUILD / "crc_floor.so"
    BUILD.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(output), SOURCE, "-l:libisal.so.2"]
    subprocess.run(command, check=True, capture_output=True)
    return str(output)


if __name__ == "__main__":
    floors: dict[str, Prepare] = {"memcpy": memcpy, "codec": codec, "check": ours.check}
    floors["numpy_batches_unverified"] = ours.numpy_batches_unverified
    floors["convert_lazily_shared"] = ours.convert_lazily
    for prepare in (ours.convert, ours.numpy_batches):
        floors[f"{prepare.__name__}_one_thread"] = ours.twice(prepare, threads=1)
    try:
        _compiled()
        floors["isal_crc"] = isal_crc
    except (OSError, subprocess.CalledProcessError):
        pass  # libisal2 or a compiler is not installed: the table says so
    serve(floors)
