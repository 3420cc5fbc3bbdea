"""Decode keys and values to Arrow columns: Avro, Protobuf, JSON, text and numbers, with schemas of a registry."""

from kafkafmt._util.extras import needed_by

with needed_by("kafkafmt.decode", "decode"):
    from kafkafmt.decode.decoding import Decoding
    from kafkafmt.decode.options import DecodingError
    from kafkafmt.decode.payloads import Schema, SchemaError
    from kafkafmt.decode.schemas.files import SchemaFiles
    from kafkafmt.decode.schemas.registry import RegistryOptions, SchemaRegistry
    from kafkafmt.decode.schemas.source import SchemaId, SchemaSource, SchemaSourceError, UnknownSchemaError
    from kafkafmt.decode.schemas.topic import SchemasTopic

__all__ = [
    "Decoding",
    "DecodingError",
    "RegistryOptions",
    "Schema",
    "SchemaError",
    "SchemaFiles",
    "SchemaId",
    "SchemaRegistry",
    "SchemaSource",
    "SchemaSourceError",
    "SchemasTopic",
    "UnknownSchemaError",
]
