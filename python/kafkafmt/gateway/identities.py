"""The identity under which a client's connections reach the brokers.

By default it is that of the gateway, from the settings of the cluster. A file may have an identity for each user:

    [alice]
    username = alice-upstream
    password = wonderland
    mechanism = SCRAM-SHA-512

The default of `username` is the name of the section, and that of `mechanism` is in the settings. Or the gateway
passes on the client's own name and password: the broker that accepts them has authenticated the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkafmt._util.ini import Section, read_ini
from kafkafmt.client.client_config import Secret
from kafkafmt.gateway.cluster_config import without_sasl
from kafkafmt.gateway.errors import UpstreamAuthenticationError
from kafkafmt.gateway.upstreams import Upstreams
from kafkafmt.server.security.exchanges import AuthenticationError
from kafkafmt.server.security.users import MECHANISMS, PLAIN

_USERNAME, _PASSWORD, _MECHANISM = _PROPERTIES = ("username", "password", "mechanism")


@dataclass(frozen=True)
class Identity:
    """How the gateway authenticates for one user. mechanism: None: that of the settings of the cluster."""

    username: str
    password: Secret
    mechanism: str | None = None


@dataclass(frozen=True)
class Identities:
    """The identities of a file, by user."""

    path: Path
    by_user: Mapping[str, Identity]

    def reload(self) -> Identities:
        """Read the file again. Raises as `read_identities`."""
        return read_identities(self.path)


def read_identities(path: Path) -> Identities:
    """Read the identities of a file. Raises IniError and OSError. Messages contain no password."""
    return Identities(path, {section.name: _identity(section) for section in read_ini(path)})


def _identity(section: Section) -> Identity:
    properties = section.properties
    for key in properties:
        if key not in _PROPERTIES:
            raise section.error(
                f"property of an identity: expected one of {', '.join(_PROPERTIES)}, found {key}", key
            )
    for key in (_USERNAME, _PASSWORD):
        if key in properties and not properties[key]:
            raise section.error(f"the {key} is empty", key)
    if _PASSWORD not in properties:
        raise section.error(f"[{section.name}] has no {_PASSWORD}")
    mechanism = properties.get(_MECHANISM)
    if mechanism is not None and mechanism.upper() not in MECHANISMS:
        raise section.error(
            f"{_MECHANISM}: expected one of {', '.join(MECHANISMS)}, found {mechanism}", _MECHANISM
        )
    return Identity(
        properties.get(_USERNAME, section.name),
        Secret(properties[_PASSWORD]),
        None if mechanism is None else mechanism.upper(),
    )


class ClientIdentity:
    """Chooses the options for the connections of one client, whose user is not known at first.

    config: those of the cluster. identities: None: all users share the options' own identity. passes: whether the
    client's name and password are passed on.
    """

    def __init__(self, config: Mapping[str, Any], identities: Identities | None, *, passes: bool) -> None:
        self._config = config
        self._identities = identities
        self._passes = passes

    @property
    def is_shared(self) -> bool:
        """Whether all clients have the identity of the options, before they authenticate as well."""
        return self._identities is None and not self._passes

    @property
    def first(self) -> Mapping[str, Any]:
        """The options before the client has authenticated."""
        return self._config if self.is_shared else without_sasl(self._config)

    async def accept(self, upstreams: Upstreams, user: str, password: str | None) -> None:
        """Connect as this user from now on. Raises AuthenticationError if a broker refuses a password passed on.

        Raises UpstreamError if no broker can be asked.
        """
        if self._passes:
            assert password is not None  # of PLAIN
            upstreams.identify(self._as(Identity(user, Secret(password))))
            try:
                await upstreams.any()
            except UpstreamAuthenticationError as error:
                raise AuthenticationError(f"{user!r}: {error}") from None
        elif self._identities is not None:
            identity = self._identities.by_user.get(user)
            if identity is None:
                raise AuthenticationError(f"{user!r} has no identity in {self._identities.path}")
            upstreams.identify(self._as(identity))

    def _as(self, identity: Identity) -> dict[str, Any]:
        return {
            **self._config,
            "sasl_mechanism": identity.mechanism or self._config["sasl_mechanism"] or PLAIN,
            "sasl_plain_username": identity.username,
            "sasl_plain_password": identity.password,
        }
