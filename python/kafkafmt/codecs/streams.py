"""Payloads decompressed from their start on, as much at a time as is asked for."""

from __future__ import annotations

from typing import Protocol


class PayloadStream(Protocol):
    """A payload on the way out of its codec, from its first byte on.

    state_bytes: about what is held between two reads.
    """

    state_bytes: int

    def read(self, size: int) -> bytes | bytearray | memoryview:
        """The next `size` bytes, fewer only at the end. Raises what `codecs.decompress` does."""


class WholePayload:
    """A payload that was decompressed as a whole."""

    def __init__(self, payload: bytes | bytearray | memoryview) -> None:
        self.state_bytes = len(payload)
        self._rest = memoryview(payload)

    def read(self, size: int) -> memoryview:
        """See `PayloadStream`."""
        read, self._rest = self._rest[:size], self._rest[size:]
        return read
