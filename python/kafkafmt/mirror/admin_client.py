"""kafka-python's admin client, whose errors of connections say which cluster and which of its addresses they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka import KafkaAdminClient
from kafka.admin import AlterConfigOp, ConfigResourceType
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from kafkafmt._util.addresses import host_and_port
from kafkafmt.client.kafka_python import kafka_python_config
from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from kafkafmt.mirror.addresses import ClusterAddress

# The source of a property in DescribeConfigs that was set for the topic itself.
_SET_FOR_TOPIC = 1
# kafka-python's errors of a cluster that does not answer. Their text is a number of a broker, or of a system's error.
_SILENCE = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.UnknownBrokerIdError,  # of a broker that has gone, and is still a leader or the controller here
)


class UnansweredError(MirrorError, kafka_errors.RetriableError):  # type: ignore[misc]
    """A cluster has not answered, or answered that it cannot yet, as while its brokers restart."""

    def __str__(self) -> str:
        return str(self.args[0])  # kafka-python's errors put their class before the message


class UnreachableError(UnansweredError):
    """The brokers of a cluster do not answer at the addresses that the cluster advertises.

    reason: the message without the address of the cluster.
    """

    def __init__(self, address: ClusterAddress, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.reason = reason


class AdminClient:
    """An admin client, which has its methods. Raises UnreachableError for a cluster that does not answer a request.

    config: of kafka-python's client, which connects. Raises as that does.
    """

    def __init__(self, address: ClusterAddress, config: Mapping[str, Any]) -> None:
        self._address, self._config = address, config
        self._is_outdated = False
        self._admin = self._open()

    def _open(self) -> KafkaAdminClient:
        opened: list[tuple[NetworkSelector, KafkaConnectionManager, KafkaNetClient]] = []

        def connect(**config: Any) -> KafkaNetClient:
            net = NetworkSelector(**config)
            manager = KafkaConnectionManager(net, **config)
            opened.append((net, manager, KafkaNetClient(net=net, manager=manager)))
            return opened[0][2]

        try:
            admin = KafkaAdminClient(**kafka_python_config(self._config), kafka_client=connect)
        except BaseException:
            for net, _, client in opened:
                client.close()
                net.stop()
            raise
        self._manager = opened[0][1]
        return admin

    @property
    def cluster(self) -> Any:
        """The metadata of the cluster."""
        return self._manager.cluster

    def describe_topic_configs(
        self, names: Iterable[str], *, own: bool
    ) -> Mapping[str, Mapping[str, str] | kafka_errors.KafkaError]:
        """Return the configuration of each topic, or the error of the broker.

        own: only properties that were set for the topic itself.

        kafka-python's `describe_configs` drops the error of a topic, which then seems to have no configuration.
        """
        resources = [(ConfigResourceType.TOPIC, name, None) for name in names]
        response = self._ask(DescribeConfigsRequest(resources=resources))
        return {one.resource_name: _topic_configs(one, own=own) for one in response.results}

    def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, only_checks: bool = False
    ) -> Mapping[str, kafka_errors.KafkaError]:
        """Set properties of topics, or reset those that are None (KIP-339). Return the errors of the broker, by topic.

        only_checks: only check that they could be set. Raises IncompatibleBrokerVersion before Kafka 2.3.

        kafka-python's `alter_configs` returns an error as text, without its class.
        """
        resources: list[Any] = [
            (
                ConfigResourceType.TOPIC,
                name,
                [
                    (key, AlterConfigOp.SET if value is not None else AlterConfigOp.DELETE, value)
                    for key, value in changed.items()
                ],
            )
            for name, changed in changes.items()
        ]
        try:
            response = self._ask(
                IncrementalAlterConfigsRequest(resources=resources, validate_only=only_checks)
            )
        except kafka_errors.IncompatibleBrokerVersion:
            if only_checks:
                raise
            errors, resources = self._replaced_configs(changes)
            if not resources:
                return errors
            response = self._ask(AlterConfigsRequest(resources=resources, validate_only=False))
        else:
            errors = {}
        return errors | {one.resource_name: _error(one) for one in response.responses if one.error_code}

    def _replaced_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> tuple[dict[str, kafka_errors.KafkaError], list[Any]]:
        """Return errors by topic, and the resources of AlterConfigs. It resets all properties that it does not set."""
        errors, resources = {}, []
        for name, found in self.describe_topic_configs(changes, own=True).items():
            if isinstance(found, kafka_errors.KafkaError):
                errors[name] = found
            else:
                configs = [
                    (key, value) for key, value in {**found, **changes[name]}.items() if value is not None
                ]
                resources.append((ConfigResourceType.TOPIC, name, configs))
        return errors, resources

    def topic_errors(self, name: str) -> Iterator[type[kafka_errors.KafkaError]]:
        """Ask one broker after the other for a topic. Yield the error of each that answers: NoError if it knows it."""
        topics = [MetadataRequest.MetadataRequestTopic(name=name)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        for broker in self.cluster.brokers():
            try:
                response = self._ask(request, broker.node_id)
            except UnansweredError:
                continue
            yield from (kafka_errors.for_code(topic.error_code) for topic in response.topics)

    def _ask(self, request: Any, node_id: int | None = None) -> Any:
        """Send a message of kafka-python to a broker, by default to any. Return the response."""

        async def send() -> Any:
            return await self._manager.send(request, node_id=node_id)

        return self._answer(lambda: self._manager.run(send))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        @wraps(getattr(self._admin, name))
        def call(*arguments: Any, **options: Any) -> Any:
            return self._answer(lambda: getattr(self._admin, name)(*arguments, **options))

        return call

    def _answer(self, ask: Callable[[], Any]) -> Any:
        """Return what `ask` returns. Raises UnreachableError if no broker answers it."""
        try:
            if self._is_outdated:
                self._renew()
            return ask()
        except _SILENCE as error:
            self._is_outdated |= isinstance(error, kafka_errors.UnknownBrokerIdError)
            raise UnreachableError(self._address, self._reason(error)) from error

    def _renew(self) -> None:
        """Replace the client, because a broker has gone that it takes for the controller.

        kafka-python looks for the controller again only if a broker answers that it is not the controller. With KRaft
        any broker that runs is named as the controller, and passes requests on.
        """
        renewed = self._open()
        self._admin.close()
        self._admin, self._is_outdated = renewed, False

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def _reason(self, error: Exception) -> str:
        """Return the error with the addresses of the brokers, which are not those of the bootstrap servers.

        kafka-python's errors do not name the broker. It is one to which a connection has just failed, or any of them.
        """
        if isinstance(error, kafka_errors.UnknownBrokerIdError):
            return f"a broker of the cluster has gone: {error}"
        brokers = sorted(self.cluster.brokers(), key=lambda one: str(one.node_id))
        failed = [one for one in brokers if self._has_just_failed(one.node_id)]
        advertised = ", ".join(
            f"broker {one.node_id} at {host_and_port(one.host, one.port)}" for one in failed or brokers
        )
        some = "one of " if len(brokers) > 1 and not failed else ""
        return f"no answer of {some}{advertised or 'any broker'}, as the cluster advertises: {error}"

    def _has_just_failed(self, node_id: int) -> bool:
        try:
            return bool(self._manager.connection_delay(node_id) > 0)
        except KeyError:  # its thread has connected meanwhile
            return False


def _topic_configs(result: Any, *, own: bool) -> Mapping[str, str] | kafka_errors.KafkaError:
    if result.error_code:
        return _error(result)
    found = [one.to_dict() for one in result.configs]
    return {
        one["name"]: one["value"]
        for one in found
        if one["value"] is not None and (not own or _is_set_for_topic(one))
    }


def _is_set_for_topic(config: Mapping[str, Any]) -> bool:
    # DescribeConfigs 0 has no source. Its defaults are those of all topics.
    if "config_source" in config:
        return bool(config["config_source"] == _SET_FOR_TOPIC)
    return not config["is_default"]


def _error(result: Any) -> kafka_errors.KafkaError:
    error: kafka_errors.KafkaError = kafka_errors.for_code(result.error_code)(result.error_message or "")
    return error
