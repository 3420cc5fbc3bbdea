"""Read the content of control records, such as transaction markers (KIP-98)."""

from ..wire.status import InvalidRecordError
from ..types import ControlRecord, ControlRecordType

cdef frozenset KNOWN_CONTROL_TYPES = frozenset(int(kind) for kind in ControlRecordType)

cdef enum:
    CONTROL_KEY_SIZE = 4        # version and type, int16 each
    MARKER_VALUE_SIZE = 6       # version int16, coordinator epoch int32


cdef object control_field(bytes data, str what, Py_ssize_t least, Py_ssize_t at):
    """Return the 16-bit number at byte `at` of a control record's key or value. Bytes 0 and 1 are its version.

    Raises InvalidRecordError for fewer than `least` bytes, and for a negative version.
    """
    size = -1 if data is None else len(data)
    if size < least:
        found = "null" if data is None else f"{size} bytes"
        raise InvalidRecordError(f"{what}: expected {least} bytes or more, found {found}")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise InvalidRecordError(f"version of {what}: expected 0 or more, found {version}")
    return int.from_bytes(data[at:at + 2], "big", signed=True)


cdef object read_control_record(bytes key, bytes value):
    """Return the `ControlRecord` of a key and value, as Kafka's ControlRecordType and EndTransactionMarker (KIP-98)."""
    number = control_field(key, "key of a control record", CONTROL_KEY_SIZE, 2)
    kind = ControlRecordType(number) if number in KNOWN_CONTROL_TYPES else ControlRecordType.UNKNOWN
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        return ControlRecord(kind, None)
    control_field(value, "value of a transaction marker", MARKER_VALUE_SIZE, 0)
    return ControlRecord(kind, int.from_bytes(value[2:MARKER_VALUE_SIZE], "big", signed=True))
