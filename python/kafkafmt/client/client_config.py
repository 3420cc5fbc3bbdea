"""Parse the configuration of kafka-python's clients from text, under Kafka's names or kafka-python's own.

`parse_client_config` takes settings from a client.properties file, a command line or Spark's options. A dotted name
means kafka-python's option with underscores (security.protocol, fetch.max.bytes). Settings of the Java client with
another form are translated: a login module in sasl.jaas.config, and PEM files as key store and trust store. A setting
without a counterpart in kafka-python is an error: if it were ignored, the client would not do what the user asked for.
So are settings of security without an effect: kafka-python connects in plain text for a protocol that it does not know.
`check_security` checks those of a client that is made in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kafkafmt._util.names import known_name

# A login module with its options, which contain the user name and the password.
_JAAS = re.compile(
    r"\s*[\w.]+\.(?:plain\.PlainLoginModule|scram\.ScramLoginModule)\s+required\b(?P<options>.*);\s*",
    re.DOTALL,
)
_JAAS_OPTION = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|(\S+))')
# The values of options with such names are never shown.
_SECRET = re.compile("password|secret|token|credential|jaas|proxy|[_-]key$")
_STORES = {
    "ssl_keystore_location": "ssl_certfile",
    "ssl_truststore_location": "ssl_cafile",
    "ssl_key_password": "ssl_password",
}
_STORE_TYPES = ("ssl_keystore_type", "ssl_truststore_type")
_ENDPOINT_CHECK = "ssl_endpoint_identification_algorithm"
_JAAS_CONFIG = "sasl_jaas_config"
# Options that are numbers although their default is None.
_NUMBERS = ("receive_buffer_bytes", "send_buffer_bytes", "compression_level")
# Options that are objects although their default is None.
_OBJECTS = (
    "budget",
    "key_deserializer",
    "key_serializer",
    "sasl_oauth_token_provider",
    "ssl_context",
    "value_deserializer",
    "value_serializer",
)
_ALL = ("-1", "all")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# The mechanisms of SASL that need a name and a password.
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# The mechanism that needs an object of Python.
_OAUTH = "OAUTHBEARER"
# Options whose text may have lower case. kafka-python takes upper case only.
_UPPER_CASE = ("sasl_mechanism", "security_protocol")


def is_secret(name: str) -> bool:
    """Return whether the value of an option is a secret, so that it must not be shown."""
    return bool(_SECRET.search(underscored(name)))


class Secret(str):
    """A string whose repr hides its value, so that a log of a whole configuration does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[hidden]'"


class SecretBytes(bytes):
    """Bytes whose repr hides their value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "b'[hidden]'"


def with_hidden_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with secrets that repr does not show."""
    return {name: _hidden(value) if is_secret(name) else value for name, value in config.items()}


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return Secret(value)
    return SecretBytes(value) if isinstance(value, bytes | bytearray) else value


def parse_client_config(
    given: Mapping[str, str], client: type, *, has_identity: bool = True
) -> dict[str, Any]:
    """Return the keyword arguments for `client`, a class of kafka-python or a subclass, that `given` stands for.

    has_identity: whether SASL uses a name and a password of these settings.

    Raises ValueError, in one line, for an unknown option, an option that takes no text, an invalid value, and settings
    of security that have no effect or are incomplete. The message does not show values that may be secret.
    """
    defaults: Mapping[str, Any] = client.DEFAULT_CONFIG  # type: ignore[attr-defined]
    # Each value with its option as the user wrote it, by kafka-python's name.
    written = {
        _STORES.get(underscored(name), underscored(name)): (name.strip(), given[name]) for name in given
    }
    config: dict[str, Any] = {}
    for name, (key, value) in written.items():
        if name in _STORE_TYPES:
            if value.upper() != "PEM":
                raise ValueError(f"{key}: expected PEM, the only type that Python reads, found {value!r}")
        elif name == _ENDPOINT_CHECK:
            config["ssl_check_hostname"] = bool(value)
        elif name == _JAAS_CONFIG:
            config["sasl_plain_username"], password = _credentials(value)
            config["sasl_plain_password"] = Secret(password)
        elif name in _UPPER_CASE:
            config[name] = value.upper()
        else:
            config[name] = parse_option(name, value, defaults, key)
    for store, kind in (
        ("ssl_keystore_location", _STORE_TYPES[0]),
        ("ssl_truststore_location", _STORE_TYPES[1]),
    ):
        if any(underscored(name) == store for name in given) and kind not in written:
            raise ValueError(
                f"{_dotted(store)}: expected {_dotted(kind)}=PEM beside it, the only type that Python reads"
            )
    _check_security(config, {name: key for name, (key, _) in written.items()}, _dotted, has_identity)
    if config.get("sasl_mechanism") == _OAUTH:
        raise ValueError(
            f"{written['sasl_mechanism'][0]}={_OAUTH} needs sasl_oauth_token_provider, an object, which only clients "
            "that are made in Python take"
        )
    return config


def check_security(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ValueError for options of security without an effect, and for incomplete ones.

    config: kafka-python's options. One that has its value of `defaults` counts as not given.
    """
    given = [name for name, default in defaults.items() if config.get(name, default) != default]
    _check_security(
        config, {"security_protocol": "security_protocol", **dict(zip(given, given, strict=True))}
    )


def _check_security(
    config: Mapping[str, Any],
    keys: Mapping[str, str],
    spelled: Callable[[str], str] = str,
    has_identity: bool = True,
) -> None:
    """Raise ValueError for settings of security without an effect, and for incomplete ones.

    keys: the options as the user wrote them, by kafka-python's name. spelled: makes this name that of a message.
    """
    protocol = config.get("security_protocol", "PLAINTEXT")
    if protocol not in _PROTOCOLS:
        raise ValueError(
            f"{keys['security_protocol']}: expected one of {', '.join(_PROTOCOLS)}, found {protocol}"
        )
    has_sasl = protocol.startswith("SASL_")
    has_tls = protocol.endswith("SSL")
    for name, key in keys.items():
        if (name.startswith("sasl_") and not has_sasl) or (name.startswith("ssl_") and not has_tls):
            kind = "SASL" if name.startswith("sasl_") else "TLS"
            raise ValueError(f"{key} has no effect: {spelled('security_protocol')}={protocol} has no {kind}")
    if config.get("ssl_keyfile") is not None and config.get("ssl_certfile") is None:
        raise ValueError(f"{keys['ssl_keyfile']} needs {spelled('ssl_certfile')}")
    if not has_sasl:
        return
    mechanism = config.get("sasl_mechanism")
    if mechanism is not None:
        from kafka.net.sasl import SASL_MECHANISMS  # here, as other functions are used without kafka-python

        if mechanism not in SASL_MECHANISMS:
            known = ", ".join(sorted(SASL_MECHANISMS))
            raise ValueError(f"{keys['sasl_mechanism']}: expected one of {known}, found {mechanism}")
    needed = ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
    missing = [spelled(name) for name in needed if not config.get(name)]
    if has_identity and missing and (not mechanism or mechanism in PASSWORD_MECHANISMS):
        raise ValueError(f"{spelled('security_protocol')}={protocol} needs {', '.join(missing)}")


def underscored(name: str) -> str:
    return name.strip().lower().replace(".", "_")


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def parse_option(name: str, value: str, defaults: Mapping[str, Any], key: str | None = None) -> Any:
    """Parse the text of one option of a client whose defaults these are. Raises as `parse_client_config`.

    key: the option as the user wrote it; None for its name.
    """
    key = key or name
    if name not in defaults:
        known = [*defaults, *_STORES, *_STORE_TYPES, _ENDPOINT_CHECK, _JAAS_CONFIG]
        known_name("client option", key, map(_dotted, known) if "." in key else known)
    default = defaults[name]
    parse: Callable[[str], Any] = str
    if isinstance(default, bool):
        parse = _boolean
    elif name in _OWN_WORDS:
        parse = _OWN_WORDS[name]
    elif isinstance(default, int) or name in _NUMBERS:
        parse = int
    elif isinstance(default, float):
        parse = float
    elif name in _OBJECTS or not isinstance(default, str | None):
        raise ValueError(f"client option {key!r}: expected it left out, as it takes no text")
    try:
        parsed = parse(value)
        return Secret(parsed) if isinstance(parsed, str) and is_secret(name) else parsed
    except ValueError:
        expected = _EXPECTED.get(parse, "a number")
        raise ValueError(f"client option {key!r}: expected {expected}, found {value!r}") from None


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError
    return value.lower() == "true"


def _acks(value: str) -> int:
    return -1 if value in _ALL else int(value)


def _count_or_auto(value: str) -> int | str:
    return value.lower() if value.lower() == "auto" else int(value)


def _version(value: str) -> tuple[int, ...]:
    return tuple(map(int, value.split(".")))


_OWN_WORDS: Mapping[str, Callable[[str], Any]] = {
    "acks": _acks,
    "api_version": _version,
    "max_batches_per_request": _count_or_auto,
}
_EXPECTED: Mapping[Callable[[str], Any], str] = {
    _boolean: "true or false",
    _acks: "0, 1, -1 or all",
    _count_or_auto: "a number or auto",
    _version: "a version, as 3.9",
}


def _credentials(value: str) -> tuple[str, str]:
    match = _JAAS.fullmatch(value)
    options = {
        name: re.sub(r"\\(.)", r"\1", quoted) or plain
        for name, quoted, plain in _JAAS_OPTION.findall(match["options"] if match else "")
    }
    if "username" not in options or "password" not in options:
        raise ValueError(
            "sasl.jaas.config: expected a PlainLoginModule or ScramLoginModule with username and password; for "
            "Kerberos set sasl.mechanism=GSSAPI and sasl.kerberos.service.name instead"
        )
    if options.get("tokenauth", "").lower() == "true":
        raise ValueError(
            "sasl.jaas.config: expected no tokenauth, as delegation tokens are not supported, found tokenauth=true"
        )
    return options["username"], options["password"]
