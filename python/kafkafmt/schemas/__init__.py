"""Messages that Kafka's brokers keep in internal topics, in control records and in files, of Kafka 3.9 to 4.3.

A function for each topic decodes its records. The messages are in modules by subject, such as
`kafkafmt.schemas.group_coordinator`. They are generated from the schemas in Kafka's jars. A class has the name of
Kafka's class, its fields in Python's case, and its structures as nested classes. `SCHEMA` describes its bytes in all
versions.
"""

from kafkafmt.schemas.framing import (
    DecodedRecord,
    RawMessage,
    decode_assignment,
    decode_control_record,
    decode_group_record,
    decode_metadata_record,
    decode_remote_log_record,
    decode_share_record,
    decode_subscription,
    decode_transaction_record,
)
from kafkafmt.schemas.message import Message, Struct
from kafkafmt.schemas.registry import (
    CONTROL_RECORDS,
    GROUP_RECORDS,
    METADATA_RECORDS,
    REMOTE_LOG_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    RecordType,
)
from kafkafmt.schemas.schema import FieldSchema, MessageSchema, StructSchema, TaggedField, Versions

__all__ = [
    "CONTROL_RECORDS",
    "GROUP_RECORDS",
    "METADATA_RECORDS",
    "REMOTE_LOG_RECORDS",
    "SHARE_RECORDS",
    "TRANSACTION_RECORDS",
    "DecodedRecord",
    "FieldSchema",
    "Message",
    "MessageSchema",
    "RawMessage",
    "RecordType",
    "Struct",
    "StructSchema",
    "TaggedField",
    "Versions",
    "decode_assignment",
    "decode_control_record",
    "decode_group_record",
    "decode_metadata_record",
    "decode_remote_log_record",
    "decode_share_record",
    "decode_subscription",
    "decode_transaction_record",
]
