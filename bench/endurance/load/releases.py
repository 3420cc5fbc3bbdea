"""Settings with which librdkafka is a client of an old release of Kafka."""

from __future__ import annotations


def settings_of(release: str) -> dict[str, str]:
    """Return the settings; none for an empty release, which is a client of today."""
    if not release:
        return {}
    return {
        "api.version.request": "false",
        "broker.version.fallback": release,
        "log_level": "3",  # nothing about settings that are old because the client is
    }
