"""The settings of S3: in the names of `deltalake`, of `pyiceberg`, and of the URIs of `kafkafmt.storage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkafmt.storage import RemotePath

if TYPE_CHECKING:
    from kafkafmt.storage import StoragePath

_S3 = ("s3://", "s3a://")
# The names of deltalake without AWS_, in lower case: it takes them in any case, and with or without it.
_OF_DELTA = {
    "region": "region",
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "token": "session_token",
    "session_token": "session_token",
    "endpoint": "endpoint_override",
    "endpoint_url": "endpoint_override",
}
_OF_ICEBERG = {
    "s3.region": "region",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
    "s3.endpoint": "endpoint_override",
}


def delta_options(folder: StoragePath) -> dict[str, str]:
    """Return the settings of a folder as storage options of `deltalake`."""
    if not isinstance(folder, RemotePath):
        return {}
    settings = folder.storage.settings
    names = {
        "region": "AWS_REGION",
        "access_key": "AWS_ACCESS_KEY_ID",
        "secret_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
    }
    found = {names[name]: str(value) for name, value in settings.items() if name in names}
    if "endpoint_override" in settings:
        scheme, endpoint = settings.get("scheme", "https"), settings["endpoint_override"]
        found["AWS_ENDPOINT_URL"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        if scheme == "http":
            found["AWS_ALLOW_HTTP"] = "true"
    return found


def delta_settings(target: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return storage options of `deltalake` as settings of a URI; none of another store than S3."""
    return _settings(
        target, _OF_DELTA, {name.lower().removeprefix("aws_"): text for name, text in options.items()}
    )


def iceberg_settings(location: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties of a catalog of `pyiceberg` as settings of a URI; none of another store than S3."""
    return _settings(location, _OF_ICEBERG, properties)


def _settings(uri: str, names: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    if not uri.startswith(_S3):
        return {}
    settings = {ours: options[theirs] for theirs, ours in names.items() if theirs in options}
    scheme, separator, endpoint = settings.get("endpoint_override", "").partition("://")
    if separator:
        settings |= {"endpoint_override": endpoint, "scheme": scheme}
    return settings
