"""The versions of APIs that a gateway offers: what its cluster takes, and what it translates (KIP-35)."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.protocol import admin, metadata
from kafka.protocol.api_key import ApiKey

from kafkafmt.gateway.translations import TRANSLATIONS
from kafkafmt.server.request import Message

# Translated from version 0 on, by modules of their own.
_RECORDS = {ApiKey.Produce: 3, ApiKey.Fetch: 4}
# The newest versions whose messages are decoded here: those that name brokers.
_NEWEST: Mapping[int, int] = {
    ApiKey.Metadata: metadata.MetadataRequest.max_version,
    ApiKey.FindCoordinator: metadata.FindCoordinatorRequest.max_version,
    ApiKey.DescribeCluster: admin.DescribeClusterRequest.max_version,
    ApiKey.ApiVersions: metadata.ApiVersionsRequest.max_version,
    ApiKey.Produce: 13,
    ApiKey.Fetch: 18,
}
# Requests between brokers, and those of share groups, whose responses name brokers.
_LEFT_OUT = frozenset((ApiKey.ShareFetch, ApiKey.ShareAcknowledge))


def offered_versions(response: Message) -> Message:
    """Change a broker's response to ApiVersions to what a gateway in front of it offers."""
    offered = []
    for api in response.api_keys:
        if api.api_key in _LEFT_OUT:
            continue
        api.max_version = min(api.max_version, _NEWEST.get(api.api_key, api.max_version))
        translation = TRANSLATIONS.get(api.api_key)
        if api.api_key in _RECORDS or (
            translation is not None and api.min_version <= len(translation.versions)
        ):
            api.min_version = 0
        if api.min_version <= api.max_version:
            offered.append(api)
    response.api_keys = offered
    return response
