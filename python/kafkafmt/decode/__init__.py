"""Decode keys and values to Arrow columns: Avro, Protobuf, JSON, text and numbers, with schemas of a registry."""
