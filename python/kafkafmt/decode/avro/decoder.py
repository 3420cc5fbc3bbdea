"""The Avro format: decoders of payloads, the arrays of what the kernel reads, and its errors as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.avro import ReadStatus
from kafkafmt.decode.avro.columns import Columns
from kafkafmt.decode.avro.programs import Program
from kafkafmt.decode.avro.schemas import Enum, Fixed, Primitive, parse
from kafkafmt.decode.payloads import DecodedPayloads, PayloadDecoder, Payloads, Schema, SchemaError

if TYPE_CHECKING:
    from kafkafmt.decode.avro.schemas import AvroType


class AvroFormat:
    """Decodes Avro. The schema of the writer is resolved against the schema of the reader."""

    def ensure_valid(self, schema: Schema) -> None:
        """Raise SchemaError if a schema is damaged."""
        with _bounded():
            parse(schema)

    def read_type(self, reader: Schema) -> pa.DataType:
        """Return the Arrow type of a schema."""
        with _bounded():
            return Columns(parse(reader)).root.type

    def decoder(self, writer: Schema, reader: Schema) -> PayloadDecoder:
        """Return a decoder of the payloads of `writer` to the type of `reader`."""
        with _bounded():
            return AvroDecoder(writer, reader)

    def left_out(self, writer: Schema, reader: Schema) -> Sequence[str]:
        """Return the paths of the fields of `writer` that `reader` lacks, also by their aliases."""
        with _bounded():
            read = parse(reader)
            return Program(parse(writer), Columns(read), read).left_out


FORMAT = AvroFormat()


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise SchemaError if schemas are nested too deeply for the calls of Python."""
    try:
        yield
    except RecursionError:
        raise SchemaError("the Avro schemas are nested too deeply") from None


class AvroDecoder:
    """Decodes the payloads of one writer."""

    def __init__(self, writer: Schema, reader: Schema) -> None:
        read = parse(reader)
        columns = Columns(read)
        self.type = columns.root.type
        self._root = columns.root
        self._program = Program(parse(writer), columns, read)
        self._reader = self._program.reader()

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        """Decode payloads. Raises OverflowError if the columns take too many bytes or items."""
        arrays, failures = self._reader.read(
            np.ascontiguousarray(payloads.data),
            np.ascontiguousarray(payloads.starts),
            np.ascontiguousarray(payloads.ends),
        )
        errors = {
            row: self._error(ReadStatus(status), step, position, found)
            for row, status, step, position, found in failures.tolist()
        }
        return DecodedPayloads(self._root.array(arrays), errors)

    def _error(self, status: ReadStatus, step: int, position: int, found: int) -> str:
        path = self._program.paths[step]
        place = f"position {position}, field {path}" if path else f"position {position}"
        return f"{place}: {self._reason(status, step, found)}"

    def _reason(self, status: ReadStatus, step: int, found: int) -> str:
        """Return what was expected and what was found."""
        numbers, writer = self._program.steps[step], self._program.writers[step]
        if status == ReadStatus.ENDS_EARLY:
            return f"expected {_expected(writer)}; the payload ends"
        if status == ReadStatus.BRANCH_REFUSED:
            return self._program.refusals.get(step, "the reader cannot read this branch")
        if status == ReadStatus.NUMBER_RANGE:
            return f"expected {_expected(writer)} of {numbers.a} to {numbers.b}; found {found}"
        if status == ReadStatus.ENUM_SYMBOL:
            assert isinstance(writer, Enum)
            return f"the enum of the reader has no symbol {writer.symbols[found]}, and no default"
        if status == ReadStatus.ENUM_INDEX:
            return f"expected a symbol of 0 to {numbers.b - 1}; found {found}"
        if status == ReadStatus.BRANCH_INDEX:
            return f"expected a branch of 0 to {numbers.child_count - 1}; found {found}"
        return _REASONS[status].format(found=found)


_REASONS = {
    ReadStatus.VARINT_TOO_LONG: "expected a varint of 64 bits; found more",
    ReadStatus.LENGTH: "expected a length of at most the bytes left; found {found}",
    ReadStatus.NOT_UTF8: "expected UTF-8; found other bytes",
    ReadStatus.NOT_BOOLEAN: "expected a boolean, 0 or 1; found {found}",
    ReadStatus.DECIMAL_RANGE: "expected a decimal of the precision of the reader; found one of {found} bytes",
    ReadStatus.DURATION_RANGE: "expected months and days below 2^31; found more",
    ReadStatus.ITEM_COUNT: "expected at most an item for each byte left; found {found}",
    ReadStatus.BLOCK_SIZE: "expected the end of a block of items; it is {found} bytes away",
    ReadStatus.EMPTY_ITEMS: "expected at most {found} items without bytes; found more",
    ReadStatus.DEPTH: "expected at most {found} levels of values; found more",
    ReadStatus.BYTES_LEFT: "expected the end of the payload; found {found} more bytes",
}


def _expected(writer: AvroType) -> str:
    if isinstance(writer, Primitive):
        article = "an" if writer.kind == "int" else "a"
        return f"{article} {writer.kind}"
    if isinstance(writer, Fixed):
        return f"{writer.size} bytes of {writer.name}"
    return f"{'a' if writer.kind != 'array' and writer.kind != 'enum' else 'an'} {writer.kind}"
