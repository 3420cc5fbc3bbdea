"""The record types of each internal topic, by the number that a record's key or frame has.

A generated module makes up to hundreds of classes. It is imported when a type of its topic is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import MappingProxyType, ModuleType

from kafkafmt.schemas import clients
from kafkafmt.schemas.message import Message


@dataclass(frozen=True, slots=True)
class RecordType:
    """A record type of an internal topic.

    name: Kafka's name without "Key" and "Value": "OffsetCommit", "TopicRecord".
    api_key: the number of the type.
    key: the message in the key. None if the type is in the value.
    value: the message in the value.
    early_value: the layout of releases that had the feature for early access. Kafka changed it without a new
        version. None if there was no other layout.
    """

    name: str
    api_key: int
    key: type[Message] | None
    value: type[Message]
    early_value: type[Message] | None = None


class RecordTypes(Mapping[int, RecordType]):
    """The record types of a topic by their numbers, in the order of the numbers.

    module: the generated module with the messages. types_of: finds the types in it.
    """

    def __init__(self, module: str, types_of: Callable[[ModuleType], dict[int, RecordType]]) -> None:
        self._module, self._types_of = module, types_of

    @cached_property
    def _types(self) -> dict[int, RecordType]:
        return dict(sorted(self._types_of(import_module(f"kafkafmt.schemas.{self._module}")).items()))

    def __getitem__(self, number: int) -> RecordType:
        return self._types[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


def _messages(module: ModuleType) -> dict[str, type[Message]]:
    """The classes of a generated module by their names, those of early layouts with their prefix."""
    return {
        name: made
        for name, made in vars(module).items()
        if isinstance(made, type) and issubclass(made, Message) and made is not Message
    }


def _coordinator_types(module: ModuleType) -> dict[int, RecordType]:
    messages = _messages(module)
    types = {}
    for key in messages.values():
        name, is_key = key.SCHEMA.name.removesuffix("Key"), key.SCHEMA.name.endswith("Key")
        if is_key and key.SCHEMA.api_key is not None:
            value, early = messages[f"{name}Value"], messages.get(f"Early{name}Value")
            types[key.SCHEMA.api_key] = RecordType(name, key.SCHEMA.api_key, key, value, early)
    return types


def _framed_types(module: ModuleType) -> dict[int, RecordType]:
    return {
        made.SCHEMA.api_key: RecordType(made.SCHEMA.name, made.SCHEMA.api_key, None, made)
        for made in _messages(module).values()
        if made.SCHEMA.api_key is not None
    }


def _control_types() -> Mapping[int, RecordType]:
    """Kafka's `ControlRecordType`."""
    values: dict[str, type[Message]] = {
        "Abort": clients.EndTxnMarker,
        "Commit": clients.EndTxnMarker,
        "LeaderChange": clients.LeaderChangeMessage,
        "SnapshotHeader": clients.SnapshotHeaderRecord,
        "SnapshotFooter": clients.SnapshotFooterRecord,
        "KRaftVersion": clients.KRaftVersionRecord,
        "KRaftVoters": clients.VotersRecord,
    }
    key = clients.ControlRecordTypeSchema
    return MappingProxyType(
        {number: RecordType(name, number, key, value) for number, (name, value) in enumerate(values.items())}
    )


GROUP_RECORDS = RecordTypes("group_coordinator", _coordinator_types)
"""The record types of `__consumer_offsets` by their numbers."""
TRANSACTION_RECORDS = RecordTypes("transaction_coordinator", _coordinator_types)
"""The record types of `__transaction_state` by their numbers."""
SHARE_RECORDS = RecordTypes("share_coordinator", _coordinator_types)
"""The record types of `__share_group_state` by their numbers."""
METADATA_RECORDS = RecordTypes("metadata", _framed_types)
"""The record types of `__cluster_metadata` by their numbers."""
REMOTE_LOG_RECORDS = RecordTypes("storage", _framed_types)
"""The record types of `__remote_log_metadata` by their numbers."""
CONTROL_RECORDS = _control_types()
"""The types of control records by their numbers."""
