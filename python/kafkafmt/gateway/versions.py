"""The versions of APIs that a gateway offers: what its cluster takes, and what it translates (KIP-35)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kafka.protocol import admin, metadata, sasl
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsResponse

from kafkafmt.gateway.broker_versions import BrokerVersions
from kafkafmt.gateway.routes import Broker, broker_of
from kafkafmt.gateway.splitting import SPLITS
from kafkafmt.gateway.translations import TRANSLATIONS, passed_version
from kafkafmt.server.api_versions import ApiVersionsApi

if TYPE_CHECKING:
    from kafkafmt.gateway.upstream import Upstream
    from kafkafmt.server.request import Message, Request

# The first versions with batches of format v2. Those below are translated by modules of their own.
FIRST_BATCHES: Mapping[int, int] = {ApiKey.Produce: 3, ApiKey.Fetch: 4}
# The newest versions whose messages are decoded here: those that name brokers, are for several, or end here.
_NEWEST: Mapping[int, int] = {
    ApiKey.Metadata: metadata.MetadataRequest.max_version,
    ApiKey.FindCoordinator: metadata.FindCoordinatorRequest.max_version,
    ApiKey.DescribeCluster: admin.DescribeClusterRequest.max_version,
    ApiKey.ApiVersions: metadata.ApiVersionsRequest.max_version,
    ApiKey.SaslHandshake: sasl.SaslHandshakeRequest.max_version,
    ApiKey.SaslAuthenticate: sasl.SaslAuthenticateRequest.max_version,
    ApiKey.Produce: 13,
    ApiKey.Fetch: 18,
    ApiKey.ShareFetch: 2,
    ApiKey.ShareAcknowledge: 2,
    **{key: split.response.max_version for key, split in SPLITS.items()},
}


# The first version of ApiVersions that may list features whose least version is 0.
_WITH_ZERO_FEATURES = 4


def is_offered(api_key: int, *, has_own: bool, is_single: bool) -> bool:
    """Return whether an API is offered.

    has_own: whether the client's listener stands for one broker. is_single: whether the cluster has no other.
    """
    broker = broker_of(api_key)
    return broker is not Broker.BETWEEN and (broker is not Broker.OWN or has_own or is_single)


def broker_versions(upstream: Upstream) -> BrokerVersions:
    """Return the versions in the response that the connection to a broker began with. Raises UnsupportedUpstreamError.

    A broker takes ApiVersions only once before SASL, so it is not asked again.
    """
    newest = upstream.version(ApiKey.ApiVersions, _NEWEST[ApiKey.ApiVersions])
    return BrokerVersions(newest, upstream.connection.versions_response, upstream.versions())


async def answer_versions(
    request: Request, of_broker: BrokerVersions, is_offered: Callable[[int], bool]
) -> Message:
    """Answer ApiVersions with the versions that a broker takes, and those that the gateway translates.

    A request of a later version than the broker knows, or than is known here, gets the versions of ApiVersions
    (KIP-511).
    """
    newest, known, taken = of_broker
    if request.version > newest:
        return await ApiVersionsApi({ApiKey.ApiVersions: range(newest + 1)}).answer(request)
    features = known.supported_features or []
    if request.version < _WITH_ZERO_FEATURES:
        features = [one for one in features if one.min_version > 0]
    return _offered(
        ApiVersionsResponse(
            version=request.version,
            error_code=known.error_code,
            throttle_time_ms=0,
            api_keys=[
                ApiVersionsResponse.ApiVersion(
                    api_key=api_key, min_version=versions.start, max_version=versions.stop - 1
                )
                for api_key, versions in taken.items()
            ],
            supported_features=features,
            finalized_features_epoch=known.finalized_features_epoch,
            finalized_features=known.finalized_features or [],
        ),
        is_offered,
    )


def _offered(response: Message, is_offered: Callable[[int], bool]) -> Message:
    """Change the versions in the response of a broker to those that the gateway offers."""
    offered = []
    for api in response.api_keys:
        if not is_offered(api.api_key):
            continue
        taken = range(api.min_version, api.max_version + 1)
        api.max_version = min(api.max_version, _NEWEST.get(api.api_key, api.max_version))
        while api.min_version > 0 and is_answered(api.api_key, api.min_version - 1, taken):
            api.min_version -= 1
        if api.min_version <= api.max_version:
            offered.append(api)
    response.api_keys = offered
    return response


def is_answered(api_key: int, version: int, taken: range) -> bool:
    """Return whether a version that brokers do not take is answered all the same."""
    if api_key in FIRST_BATCHES:
        return version < FIRST_BATCHES[api_key] <= taken[-1]
    translation = TRANSLATIONS.get(api_key)
    if translation is not None:
        return version in translation.versions and taken[0] <= translation.max_version
    return passed_version(api_key, version, taken) is not None
