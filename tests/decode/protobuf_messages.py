"""Random Protobuf schemas and messages, and whether a decoded value is what google.protobuf has."""

from __future__ import annotations

import math
import re
from random import Random
from typing import Any

from google.protobuf import descriptor_pb2 as pb
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kafkafmt.decode import Schema
from kafkafmt.decode.protobuf.schemas import message_descriptors

FieldProto = pb.FieldDescriptorProto
SCALARS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 18)
_ENUM, _MESSAGE, _GROUP = FieldProto.TYPE_ENUM, FieldProto.TYPE_MESSAGE, FieldProto.TYPE_GROUP
_KEYS = (3, 4, 5, 6, 7, 8, 9, 13, 15, 16, 17, 18)
_NUMBERS = (*range(1, 16), 16, 2047, 2048, 70_000, 2**29 - 1)
_INTEGERS = {3: (64, True), 4: (64, False), 5: (32, True), 6: (64, False), 7: (32, False), 13: (32, False)}
_INTEGERS |= {15: (32, True), 16: (64, True), 17: (32, True), 18: (64, True)}


def random_schema(rng: Random, *, overwrites: bool = True) -> pb.FileDescriptorProto:
    """Return a file of proto2, proto3 or edition 2023 with some messages, of which the first is of payloads.

    overwrites: with maps and oneofs, whose values may replace others, which are not looked at then.
    """
    file = pb.FileDescriptorProto(name="random.proto", package="r")
    syntax = rng.choice(["proto2", "proto3", "editions"])
    file.syntax = syntax
    if syntax == "editions":
        file.edition = pb.Edition.EDITION_2023
    is_closed = syntax == "proto2" or (syntax == "editions" and rng.random() < 0.5)
    enum = file.enum_type.add(name="E")
    for number in [1, 0, -5, 900] if is_closed else [0, 1, -5, 900]:
        enum.value.add(name=f"V{abs(number)}", number=number)
    if syntax == "editions" and is_closed:
        enum.options.features.enum_type = pb.FeatureSet.CLOSED
    for index in range(rng.randrange(1, 4)):
        file.message_type.add(name=f"M{index}")
    for message in file.message_type:
        _add_fields(rng, file, message, overwrites)
    return file


def _add_fields(
    rng: Random, file: pb.FileDescriptorProto, message: pb.DescriptorProto, overwrites: bool
) -> None:
    numbers = rng.sample(_NUMBERS, rng.randrange(0, 8))
    optional = []
    for place, number in enumerate(numbers):
        if overwrites and rng.random() < 0.15:
            _add_map(rng, file, message, number)
            continue
        field = message.field.add(name=f"f{place}", number=number, label=FieldProto.LABEL_OPTIONAL)
        _choose_type(rng, file, field)
        choice = rng.random()
        if choice < 0.3:
            field.label = FieldProto.LABEL_REPEATED
            if field.type not in {9, 12, _MESSAGE, _GROUP}:
                _choose_packing(rng, file, field)
        elif overwrites and choice < 0.45:
            if not message.oneof_decl:
                message.oneof_decl.add(name="choice")
            field.oneof_index = 0
        elif file.syntax == "proto2":
            if choice < 0.5 and field.type != _MESSAGE:  # a message that requires itself would have no end
                field.label = FieldProto.LABEL_REQUIRED
            elif choice < 0.7 and field.type in {5, 9, _ENUM}:
                field.default_value = {5: "-7", 9: "dé", _ENUM: "V900"}[field.type]
        elif file.syntax == "proto3":
            if choice < 0.6 and field.type != _MESSAGE:
                optional.append(field)
        elif choice < 0.7 and field.type not in {_MESSAGE, _ENUM}:
            field.options.features.field_presence = pb.FeatureSet.IMPLICIT
    for field in optional:  # the oneof of each is behind the real ones
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


def _choose_type(rng: Random, file: pb.FileDescriptorProto, field: pb.FieldDescriptorProto) -> None:
    choice = rng.random()
    if choice < 0.7:
        field.type = rng.choice(SCALARS)
    elif choice < 0.8:
        field.type, field.type_name = _ENUM, ".r.E"
    else:
        field.type, field.type_name = _MESSAGE, f".r.{rng.choice(file.message_type).name}"
        if file.syntax == "editions" and rng.random() < 0.3:
            field.options.features.message_encoding = pb.FeatureSet.DELIMITED


def _choose_packing(rng: Random, file: pb.FileDescriptorProto, field: pb.FieldDescriptorProto) -> None:
    is_packed = rng.random() < 0.5
    if file.syntax == "editions":
        encodings = pb.FeatureSet
        field.options.features.repeated_field_encoding = encodings.PACKED if is_packed else encodings.EXPANDED
    else:
        field.options.packed = is_packed


_NARROWER = {
    3: (5, 13, 8),  # what an int64 can be of: int32, uint32, bool
    4: (13, 8),
    5: (8, _ENUM),
    12: (9,),
    13: (8,),
    18: (17,),
}


def older_schema(rng: Random, file: pb.FileDescriptorProto) -> pb.FileDescriptorProto:
    """Return an older version of a schema: without some fields, with others, and with narrower types."""
    older = pb.FileDescriptorProto()
    older.CopyFrom(file)
    for message in older.message_type:
        for field in list(message.field):
            choice = rng.random()
            if choice < 0.2 and not field.HasField("oneof_index") and field.type != _MESSAGE:
                message.field.remove(field)
            elif choice < 0.6 and field.type in _NARROWER and not field.HasField("default_value"):
                field.type = rng.choice(_NARROWER[field.type])
                if field.type == _ENUM:
                    field.type_name = ".r.E"
                    if older.syntax == "editions":
                        field.options.features.ClearField("field_presence")
                if field.type in {9, 12}:
                    field.ClearField("options")
            elif (
                choice < 0.7
                and field.label == FieldProto.LABEL_REPEATED
                and field.type not in {9, 12, _MESSAGE}
            ):
                _choose_packing(rng, older, field)
        number = 1_000_000
        message.field.add(
            name="gone", number=number, type=rng.choice(SCALARS), label=FieldProto.LABEL_OPTIONAL
        )
    return older


def _add_map(rng: Random, file: pb.FileDescriptorProto, message: pb.DescriptorProto, number: int) -> None:
    name = f"Map{number}Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=rng.choice(_KEYS), label=FieldProto.LABEL_OPTIONAL)
    value = entry.field.add(name="value", number=2, label=FieldProto.LABEL_OPTIONAL)
    _choose_type(rng, file, value)
    value.options.Clear()
    type_name = f".r.{message.name}.{name}"
    label = FieldProto.LABEL_REPEATED
    message.field.add(name=f"map{number}", number=number, type=_MESSAGE, type_name=type_name, label=label)


def schema_of(file: pb.FileDescriptorProto) -> Schema:
    return Schema("PROTOBUF", pb.FileDescriptorSet(file=[file]).SerializeToString())


def message_class(schema: Schema) -> type[Message]:
    return message_factory.GetMessageClass(message_descriptors(schema)[0])


def has_long_varint(payload: bytes) -> bool:
    """Return whether there may be a varint with more than 64 bits: upb refuses it, and other parsers do not."""
    return re.search(rb"[\x80-\xff]{9}[\x02-\xff]", payload, re.DOTALL) is not None


def fill(rng: Random, message: Message, depth: int = 0) -> None:
    """Set fields of a message to random values. Required ones are set."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.4 and not field.is_required:
            continue
        if field.message_type is not None and depth > 3:
            continue
        if field.is_repeated:
            for _ in range(rng.randrange(4)):
                _add_item(rng, message, field, depth)
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            fill(rng, inner, depth + 1)
        else:
            setattr(message, field.name, _scalar(rng, field))


def _add_item(rng: Random, message: Message, field: FieldDescriptor, depth: int) -> None:
    items = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key_field, value_field = field.message_type.fields
        key = _scalar(rng, key_field)
        if value_field.message_type is None:
            items[key] = _scalar(rng, value_field)
        else:
            fill(rng, items[key], depth + 1)
    elif field.message_type is not None:
        fill(rng, items.add(), depth + 1)
    else:
        items.append(_scalar(rng, field))


def _scalar(rng: Random, field: FieldDescriptor) -> Any:
    kind = field.type
    if kind == _ENUM:
        numbers = [value.number for value in field.enum_type.values]
        return rng.choice(numbers if field.enum_type.is_closed else [*numbers, 77])
    if kind in _INTEGERS:
        bits, signed = _INTEGERS[kind]
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return rng.choice(
            [0, low, high, rng.randrange(low, high), min(high, max(low, rng.randrange(-300, 300)))]
        )
    if kind == 8:
        return rng.random() < 0.5
    if kind == 9:
        return "".join(rng.choice("aé€😀\0") for _ in range(rng.choice([0, 1, 3, 200])))
    if kind == 12:
        return rng.randbytes(rng.choice([0, 1, 5, 150]))
    return rng.choice([0.0, -0.0, 1.5, math.inf, math.nan, float(rng.randrange(1000))])


def assert_agrees(found: Any, message: Message, open_names: tuple[str, ...] = ()) -> None:
    """Assert that a decoded value is what google.protobuf has in a message."""
    name = message.DESCRIPTOR.full_name
    if name in open_names:
        assert str(type(message).FromString(found)) == str(message)  # equal even if NaN
    elif not message.DESCRIPTOR.fields:
        assert found is True
    else:
        assert list(found) == [field.name for field in message.DESCRIPTOR.fields]
        for field in message.DESCRIPTOR.fields:
            _assert_field(found[field.name], message, field, (*open_names, name))


def _assert_field(found: Any, message: Message, field: FieldDescriptor, names: tuple[str, ...]) -> None:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        assert len(found) == len(value)
        for key, item in found:
            assert key in value
            _assert_value(item, value[key], inner, names)
    elif field.is_repeated:
        assert len(found) == len(value)
        for item, expected in zip(found, value, strict=True):
            _assert_value(item, expected, field, names)
    elif field.has_presence and not message.HasField(field.name):
        if field.has_default_value and field.containing_oneof is None:
            _assert_value(found, value, field, names)
        else:
            assert found is None
    else:
        _assert_value(found, value, field, names)


def _assert_value(found: Any, value: Any, field: FieldDescriptor, names: tuple[str, ...]) -> None:
    if field.message_type is not None:
        assert_agrees(found, value, names)
    elif field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        assert found == (str(value) if known is None else known.name)
    else:
        assert type(found) is type(value)
        assert repr(found) == repr(value)  # NaN is NaN, and 0.0 is not -0.0
