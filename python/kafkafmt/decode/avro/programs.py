"""Resolve the schema of a writer against that of a reader: the program that the kernel runs for each payload.

The rules are Avro's (1.12, "Schema Resolution"). Where they leave a choice:

- Records are matched by their place, whatever their names are, as Java does. In unions, equal names go first.
- Times and timestamps with different units are converted.
- Decimals may have different precisions; values with more digits than the reader allows are errors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from _kafkafmt.payloads.avro import Operation, PayloadReader
from kafkafmt.decode.avro.columns import Columns, members_of
from kafkafmt.decode.avro.defaults import WrongDefaultError, encoded_default
from kafkafmt.decode.avro.scalars import PROMOTIONS, Step, ensure_same_scale, logical_of, primitive_step
from kafkafmt.decode.avro.schemas import (
    MISSING,
    Array,
    AvroType,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    children,
    takes_no_bytes,
)
from kafkafmt.decode.node_columns import Column
from kafkafmt.decode.payloads import SchemaError

_MAX_STEPS = 200_000
_LIMIT_BYTES = 32  # of a decimal
_NO_SYMBOL = (-1, -1)
_MARKS = {"array": "[]", "map": "{}"}  # of the paths of items and values
_SKIPPED_BYTES = {"boolean": 1, "float": 4, "double": 8}


class Program:
    """The steps of a program, with what they are for.

    paths: the field of each step, for errors. writers: the type that each reads. refusals: why branches are refused.
    left_out: the paths of the fields of the writer that the reader lacks.
    """

    def __init__(self, writer: AvroType, columns: Columns, reader: AvroType) -> None:
        self.steps: list[Step] = []
        self.paths: list[str] = []
        self.writers: list[AvroType] = []
        self.refusals: dict[int, str] = {}
        self.left_out: list[str] = []
        self._constants = bytearray(1)  # the kernel needs an address
        self._ranges: list[tuple[int, int]] = []
        self._skipped: dict[int, Step] = {}
        self._columns = columns
        self._add([writer], [""])
        self._fill(0, writer, reader, columns.root)

    def reader(self) -> PayloadReader:
        """Return the kernel's reader."""
        nodes = [column.specification for column in self._columns.all()]
        return PayloadReader(
            np.array(self.steps, np.int64),
            np.array(nodes, np.int64),
            np.frombuffer(bytes(self._constants), np.uint8),
            np.array(self._ranges, np.int64).reshape(-1, 2),
        )

    def _add(self, writers: Sequence[AvroType], paths: Sequence[str]) -> int:
        """Reserve steps that follow each other. Returns the number of the first."""
        first = len(self.steps)
        if first + len(writers) > _MAX_STEPS:
            raise SchemaError(f"the schemas take more than {_MAX_STEPS} steps to read")
        self.steps += [Step(Operation.REFUSE)] * len(writers)
        self.paths += paths
        self.writers += writers
        return first

    def _constant(self, data: bytes) -> int:
        place = len(self._constants)
        self._constants += data
        return place

    def _error(self, place: int, reason: str) -> SchemaError:
        path = self.paths[place]
        return SchemaError(f"field {path}: {reason}" if path else reason)

    def _fill(self, place: int, writer: AvroType, reader: AvroType, column: Column) -> None:
        """Set the step at a place. Raises SchemaError if the reader cannot read what the writer writes."""
        if isinstance(writer, Union):
            self._fill_union(place, writer, reader, column)
        elif isinstance(reader, Union):
            self._fill_branch(place, writer, reader, column)
        elif _match(writer, reader) is None:
            raise self._error(place, f"{_name(writer)} cannot be read as {_name(reader)}")
        else:
            try:
                self.steps[place] = self._step(place, writer, reader, column)
            except SchemaError as error:
                if str(error).startswith("field "):
                    raise
                raise self._error(place, str(error)) from None

    def _step(self, place: int, writer: AvroType, reader: AvroType, column: Column) -> Step:
        ensure_same_scale(writer, reader)
        logical = logical_of(reader)
        if logical is not None and logical.name == "decimal":
            limit = self._constant((10**logical.precision - 1).to_bytes(_LIMIT_BYTES, "little"))
            size = writer.size if isinstance(writer, Fixed) else 0
            operation = Operation.DECIMAL_FIXED if isinstance(writer, Fixed) else Operation.DECIMAL_BYTES
            return Step(operation, column.node, a=size, b=column.width, c=limit)
        if isinstance(reader, Fixed):
            special = {"uuid": Operation.UUID, "duration": Operation.DURATION}
            operation = Operation.FIXED if logical is None else special[logical.name]
            return Step(operation, column.node, a=reader.size)
        if isinstance(writer, Primitive) and isinstance(reader, Primitive):
            return primitive_step(writer, reader, column)
        if isinstance(writer, Enum) and isinstance(reader, Enum):
            return self._enum(writer, reader, column)
        if isinstance(writer, Array) and isinstance(reader, Array):
            path = f"{self.paths[place]}[]"
            first = self._add([writer.items], [path])
            self._fill(first, writer.items, reader.items, column.children[0])
            return Step(Operation.ARRAY, column.node, first, 1, c=takes_no_bytes(writer.items))
        if isinstance(writer, Map) and isinstance(reader, Map):
            first = self._add([writer.values], [f"{self.paths[place]}{{}}"])
            self._fill(first, writer.values, reader.values, column.children[0].children[1])
            return Step(Operation.MAP, column.node, first, 1)
        assert isinstance(writer, Record)
        assert isinstance(reader, Record)
        return self._record(place, writer, reader, column)

    def _enum(self, writer: Enum, reader: Enum, column: Column) -> Step:
        first = len(self._ranges)
        for symbol in writer.symbols:
            known = symbol if symbol in reader.symbols else reader.default
            data = known.encode() if known is not None else b""
            start = self._constant(data)
            self._ranges.append(_NO_SYMBOL if known is None else (start, start + len(data)))
        return Step(Operation.ENUM, column.node, a=first, b=len(writer.symbols))

    def _record(self, place: int, writer: Record, reader: Record, column: Column) -> Step:
        matches = _matching_fields(writer, reader)
        prefix = f"{self.paths[place]}." if self.paths[place] else ""
        missing = [i for i in range(len(reader.fields)) if i not in matches.values()]
        kinds = [part.type for part in writer.fields] + [reader.fields[i].type for i in missing]
        names = [part.name for part in writer.fields] + [reader.fields[i].name for i in missing]
        first = self._add(kinds, [f"{prefix}{name}" for name in names])
        for number, part in enumerate(writer.fields):
            match = matches.get(number)
            if match is None:
                self.left_out.append(self.paths[first + number])
                self._fill_skip(first + number, part.type)
            else:
                self._fill(first + number, part.type, reader.fields[match].type, column.children[match])
        for number, match in enumerate(missing, first + len(writer.fields)):
            self._fill_default(number, reader.fields[match], column.children[match])
        return Step(Operation.RECORD, column.node, first, len(kinds))

    def _fill_default(self, place: int, part: Field, column: Column) -> None:
        if part.default is MISSING:
            raise self._error(place, "the schema of the writer lacks it, and it has no default")
        try:
            data = encoded_default(part.type, part.default)
        except WrongDefaultError as error:
            raise self._error(place, f"its default does not fit: {error}") from None
        start = self._constant(data)
        first = self._add([part.type], [self.paths[place]])
        self._fill(first, part.type, part.type, column)
        self.steps[place] = Step(Operation.DEFAULT, column.node, first, 1, start, len(data))

    def _fill_union(self, place: int, writer: Union, reader: AvroType, column: Column) -> None:
        """Resolve each branch of the writer. Branches that the reader lacks are errors of the payloads with them."""
        count = len(writer.branches)
        first = self._add(writer.branches, [self.paths[place]] * count)
        errors = []
        for number, branch in enumerate(writer.branches, first):
            try:
                self._fill(number, branch, reader, column)
            except SchemaError as error:
                errors.append(error)
                self.steps[number] = Step(Operation.REFUSE)
                self.refusals[number] = str(error).removeprefix(f"field {self.paths[place]}: ")
        if errors and len(errors) == count:
            raise errors[0]
        self.steps[place] = Step(Operation.UNION, column.node, first, count)

    def _fill_branch(self, place: int, writer: AvroType, reader: Union, column: Column) -> None:
        """Resolve a type against the branch of the reader that fits best."""
        found = [
            (match, i)
            for i, branch in enumerate(reader.branches)
            if (match := _match(writer, branch)) is not None
        ]
        if not found:
            raise self._error(place, f"{_name(writer)} is no branch of {_name(reader)}")
        branch = reader.branches[min(found)[1]]
        if branch.kind == "null":
            self.steps[place] = Step(Operation.NULL_VALUE, column.node)
        elif column.members:
            member = members_of(reader).index(branch)
            first = self._add([writer], [self.paths[place]])
            self._fill(first, writer, branch, column.children[member])
            self.steps[place] = Step(Operation.MEMBER, column.node, first, 1, member)
        else:
            self._fill(place, writer, branch, column)

    def _fill_skip(self, place: int, writer: AvroType) -> None:
        """Set a step that skips a value. Types that contain themselves have steps that do."""
        waiting = [(place, writer)]
        while waiting:
            number, kind = waiting.pop()
            known = self._skipped.get(id(kind))
            if known is None:
                parts = [] if takes_no_bytes(kind) else list(children(kind))
                first = self._add(parts, _paths_of_parts(kind, self.paths[number], len(parts)))
                known = self._skipped[id(kind)] = _skip_step(kind, first, len(parts))
                waiting.extend(enumerate(parts, first))
            self.steps[number] = known


def _paths_of_parts(kind: AvroType, path: str, count: int) -> list[str]:
    if isinstance(kind, Record):
        return [f"{path}.{part.name}" for part in kind.fields[:count]]
    return [f"{path}{_MARKS.get(kind.kind, '')}"] * count


def _skip_step(writer: AvroType, first: int, count: int) -> Step:
    if takes_no_bytes(writer):
        return Step(Operation.SKIP_NOTHING)
    if isinstance(writer, Record):
        return Step(Operation.SKIP_RECORD, 0, first, count)
    if isinstance(writer, Array):
        return Step(Operation.SKIP_ARRAY, 0, first, count, c=takes_no_bytes(writer.items))
    if isinstance(writer, Map):
        return Step(Operation.SKIP_MAP, 0, first, count)
    if isinstance(writer, Union):
        return Step(Operation.SKIP_UNION, 0, first, count)
    if isinstance(writer, Fixed):
        return Step(Operation.SKIP_FIXED, a=writer.size)
    if writer.kind in _SKIPPED_BYTES:
        return Step(Operation.SKIP_FIXED, a=_SKIPPED_BYTES[writer.kind])
    return Step(Operation.SKIP_BYTES if writer.kind in {"bytes", "string"} else Operation.SKIP_VARINT)


def _matching_fields(writer: Record, reader: Record) -> dict[int, int]:
    """Return the field of the reader for each field of the writer that it has, by names, and then by aliases."""
    numbers = {part.name: number for number, part in enumerate(writer.fields)}
    found: dict[int, int] = {}
    for place, part in enumerate(reader.fields):
        if part.name in numbers:
            found[numbers[part.name]] = place
    for place, part in enumerate(reader.fields):
        if place in found.values():
            continue
        for alias in sorted(part.aliases):
            number = numbers.get(alias)
            if number is not None and number not in found:
                found[number] = place
                break
    return found


def _match(writer: AvroType, reader: AvroType) -> int | None:
    """Return how well a type of the reader fits: 0 is best. None: not at all."""
    if writer.kind == reader.kind:
        if isinstance(writer, Fixed) and isinstance(reader, Fixed) and writer.size != reader.size:
            return 3 if _are_decimals(writer, reader) else None
        if not isinstance(writer, Record | Enum | Fixed):
            return 0
        assert isinstance(reader, Record | Enum | Fixed)
        if writer.name == reader.name or writer.name in reader.aliases:
            return 0
        names = {reader.name, *reader.aliases}
        if writer.name.rpartition(".")[2] in {name.rpartition(".")[2] for name in names}:
            return 1
        return 2 if isinstance(writer, Record) or _are_decimals(writer, reader) else None
    promoted = reader.kind in PROMOTIONS.get(writer.kind, ())
    return 3 if promoted or _are_decimals(writer, reader) else None


def _are_decimals(writer: AvroType, reader: AvroType) -> bool:
    logical = logical_of(writer), logical_of(reader)
    return all(found is not None and found.name == "decimal" for found in logical)


def _name(kind: AvroType) -> str:
    """Return the name of a type for errors."""
    if isinstance(kind, Union):
        return f"the union of {', '.join(_name(branch) for branch in kind.branches)}"
    if isinstance(kind, Record | Enum | Fixed):
        return f"{kind.kind} {kind.name}"
    return kind.kind
