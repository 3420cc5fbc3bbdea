"""The one registry of formats whose payloads have schemas."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.decode.payloads import PayloadFormat, SchemaKind

# The module of each format has a `FORMAT`. Modules are imported when they are used: each needs packages of its own.
_MODULES: dict[SchemaKind, str] = {
    "AVRO": "kafkafmt.decode.avro",
    "JSON": "kafkafmt.decode.json_schema",
    "PROTOBUF": "kafkafmt.decode.protobuf",
}


def payload_format(kind: SchemaKind) -> PayloadFormat:
    """Return the format of the payloads of schemas of this kind. Raises ImportError if its packages are missing."""
    found: PayloadFormat = import_module(_MODULES[kind]).FORMAT
    return found
