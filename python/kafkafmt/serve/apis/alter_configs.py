"""AlterConfigs and IncrementalAlterConfigs: change the configuration of topics while the endpoint runs.

`topics.ini` keeps a change durably, and the next request applies it: the next fetch that of
`message.downconversion.enable` (KIP-283, "Public Interfaces").
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka import errors
from kafka.admin import AlterConfigOp, ConfigResourceType
from kafka.protocol.admin import AlterConfigsResponse, IncrementalAlterConfigsResponse
from kafka.protocol.api_key import ApiKey

from kafkafmt._util.ini import IniError
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.log.topic_properties import LISTS
from kafkafmt.serve.topic_settings import TopicConfigs, ensure_valid
from kafkafmt.server.request import Message, Request
from kafkafmt.server.yielding import yielding_between

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog

# Returns the configuration of a topic after a change. It gets the one before.
_Change = Callable[[Mapping[str, str]], dict[str, str]]
# Type and name of a resource.
_Key = tuple[int, str]


class _RefusedError(Exception):
    """A configuration is not changed. error: Kafka's error for the client, beside the message."""

    def __init__(self, error: type[errors.BrokerResponseError], message: str) -> None:
        super().__init__(message)
        self.error = error


class AlterConfigsApi:
    """Answers AlterConfigs, which replaces the configuration of a topic, and IncrementalAlterConfigs."""

    def __init__(self, catalog: Catalog, topics: TopicConfigs) -> None:
        self._catalog = catalog
        self._topics = topics

    async def answer(self, request: Request) -> Message:
        is_incremental = request.api_key == ApiKey.IncrementalAlterConfigs
        resources = request.body.resources
        times = Counter(_key(resource) for resource in resources)
        changes: dict[str, _Change] = {}
        refused: dict[_Key, _RefusedError] = {}
        async for resource in yielding_between(resources):
            key = _key(resource)
            try:
                if times[key] > 1:
                    raise _RefusedError(errors.InvalidRequestError, f"expected resource {key[1]!r} once")
                changes[key[1]] = await self._change(resource, is_incremental=is_incremental)
            except _RefusedError as error:
                refused[key] = error
        found = await asyncio.to_thread(self._update, changes, is_checked_only=request.body.validate_only)
        refused |= {(int(ConfigResourceType.TOPIC), name): error for name, error in found.items()}
        if changes and not request.body.validate_only:
            await self._topics.refresh()
        response = IncrementalAlterConfigsResponse if is_incremental else AlterConfigsResponse
        return response(
            version=request.version,
            responses=[_answer(response, key, refused.get(key)) async for key in yielding_between(times)],
        )

    async def _change(self, resource: Message, *, is_incremental: bool) -> _Change:
        """Return the change of a topic's configuration. Raises _RefusedError."""
        name = resource.resource_name
        if resource.resource_type != ConfigResourceType.TOPIC:
            message = f"resource {name!r} of type {resource.resource_type}: expected a topic"
            raise _RefusedError(errors.InvalidRequestError, message)
        if not name:
            raise _RefusedError(errors.InvalidRequestError, "Default topic resources are not allowed.")
        await self._catalog.update(name)
        if self._catalog.topic(name) is None:
            raise _RefusedError(errors.UnknownTopicOrPartitionError, f"there is no topic {name!r}")
        given = {config.name: config for config in resource.configs}
        if len(given) < len(resource.configs):
            raise _RefusedError(errors.InvalidRequestError, f"topic {name!r}: expected each config name once")
        overridden = sorted(given.keys() & self._topics.overrides(name).keys())
        if overridden:
            message = f"the topics file of the endpoint sets {', '.join(overridden)} of topic {name!r}"
            raise _RefusedError(errors.InvalidConfigurationError, message)
        nulls = [
            one.name
            for one in resource.configs
            if one.value is None and not (is_incremental and one.config_operation == AlterConfigOp.DELETE)
        ]
        if nulls:
            message = f"Null value not supported for topic configs: {','.join(nulls)[:300]}"
            raise _RefusedError(errors.InvalidRequestError, message)
        if not is_incremental:
            return lambda _: {one.name: one.value for one in resource.configs}
        return lambda before: _altered(before, resource.configs)

    def _update(self, changes: Mapping[str, _Change], *, is_checked_only: bool) -> dict[str, _RefusedError]:
        """Change `topics.ini` once for all topics. Returns the errors of those that are not changed, by name."""
        refused: dict[str, _RefusedError] = {}

        def change(known: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
            after = dict(known)
            for name, altered in changes.items():
                before = known.get(name, TopicConfig())
                try:
                    topic = replace(before, configs=altered(before.configs))
                    ensure_valid(name, topic)
                except ValueError as error:
                    refused[name] = _RefusedError(errors.InvalidConfigurationError, str(error))
                except _RefusedError as error:
                    refused[name] = error
                else:
                    after[name] = topic
            return after

        try:
            if is_checked_only:
                change(self._topics.file.read())
            elif changes:
                self._topics.file.update(change)
        except (IniError, OSError) as error:
            reason = _RefusedError(errors.KafkaStorageError, str(error))
            refused = dict.fromkeys(changes, reason)
        return refused


def _altered(before: Mapping[str, str], given: list[Message]) -> dict[str, str]:
    """Return a configuration after the operations of IncrementalAlterConfigs. Raises _RefusedError."""
    after = dict(before)
    for one in given:
        if one.config_operation == AlterConfigOp.DELETE:
            after.pop(one.name, None)
        elif one.config_operation == AlterConfigOp.SET:
            after[one.name] = one.value
        elif one.config_operation not in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
            message = f"{one.name}: expected operation 0 to 3, found {one.config_operation}"
            raise _RefusedError(errors.InvalidRequestError, message)
        elif one.name not in LISTS:
            message = (
                f"{one.name}: expected operation 0 or 1, found {one.config_operation}, which is for lists"
            )
            raise _RefusedError(errors.InvalidConfigurationError, message)
        else:
            values = [value for value in after.get(one.name, LISTS[one.name]).split(",") if value]
            named = [value for value in one.value.split(",") if value]
            if one.config_operation == AlterConfigOp.APPEND:
                values += [value for value in named if value not in values]
            else:
                values = [value for value in values if value not in named]
            after[one.name] = ",".join(values)
    return after


def _key(resource: Message) -> _Key:
    return int(resource.resource_type), resource.resource_name


def _answer(response: type[Message], key: _Key, refusal: _RefusedError | None) -> Message:
    kind, name = key
    return response.AlterConfigsResourceResponse(
        error_code=errors.NoError.errno if refusal is None else refusal.error.errno,
        error_message=None if refusal is None else str(refusal),
        resource_type=kind,
        resource_name=name,
    )
