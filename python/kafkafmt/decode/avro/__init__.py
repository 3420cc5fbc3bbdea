"""Avro payloads to Arrow columns, by a program of the schema of the writer that is resolved against the reader's."""

from kafkafmt.decode.avro.decoder import FORMAT

__all__ = ["FORMAT"]
