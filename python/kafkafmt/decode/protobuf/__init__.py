"""Decode Protobuf payloads with the schema of their writer to Arrow columns of the reader's schema."""

from kafkafmt.decode.protobuf.decoder import FORMAT

__all__ = ["FORMAT"]
