"""Payloads whose schema is `bytes` alone, as Confluent's serializers write them: the value, without Avro's length.

The length is put before each payload, so that logical types and the schema of the reader are resolved as always.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kafkafmt.decode.arrays import payload_bytes
from kafkafmt.decode.avro.schemas import Primitive, parse
from kafkafmt.decode.payloads import DecodedPayloads, PayloadDecoder, Payloads, Schema

_VARINT_BITS = 7


def confluent_decoder(writer: Schema, decoder: PayloadDecoder) -> PayloadDecoder:
    """Return the decoder of payloads of a writer in the framing of Confluent. decoder: of Avro's own payloads."""
    root = parse(writer)
    is_bare = isinstance(root, Primitive) and root.kind == "bytes"
    return BareBytesDecoder(decoder) if is_bare else decoder


@dataclass(frozen=True)
class BareBytesDecoder:
    """Decodes payloads that are the bytes of their values."""

    decoder: PayloadDecoder

    @property
    def type(self) -> pa.DataType:
        return self.decoder.type

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        """Decode payloads. Raises OverflowError as the decoder of Avro's own payloads."""
        rows = [payload_bytes(payloads, row) for row in range(len(payloads))]
        written = [_length(len(row)) + row for row in rows]
        sizes = np.array([len(one) for one in written], np.int64)
        ends = sizes.cumsum()
        return self.decoder.decode(Payloads(np.frombuffer(b"".join(written), np.uint8), ends - sizes, ends))


def _length(size: int) -> bytes:
    """Return a length as Avro writes it: a zigzag varint."""
    rest = 2 * size
    found = bytearray()
    while rest >> _VARINT_BITS:
        found.append(rest & 0x7F | 0x80)
        rest >>= _VARINT_BITS
    return bytes([*found, rest])
