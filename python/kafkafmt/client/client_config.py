"""Parse the configuration of kafka-python's clients from text, under Kafka's names or kafka-python's own.

`parse_client_config` takes settings from a client.properties file, a command line or Spark's options. A dotted name
means kafka-python's option with underscores (security.protocol, fetch.max.bytes). Settings of the Java client with
another form are translated: a login module in sasl.jaas.config, and PEM files as key store and trust store. A setting
without a counterpart in kafka-python is an error: if it were ignored, the client would not do what the user asked for.
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


def is_secret(name: str) -> bool:
    """Return whether the value of an option is a secret, so that it must not be shown."""
    return bool(_SECRET.search(underscored(name)))


class Secret(str):
    """A string whose repr hides its value, so that a log of a whole configuration does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[hidden]'"


def parse_client_config(given: Mapping[str, str], client: type) -> dict[str, Any]:
    """Return the keyword arguments for `client`, a class of kafka-python or a subclass, that `given` stands for.

    Raises ValueError, in one line, for an unknown option, an option that takes no text, and an invalid value. The
    message does not show values that may be secret.
    """
    defaults: Mapping[str, Any] = client.DEFAULT_CONFIG  # type: ignore[attr-defined]
    values = {_STORES.get(underscored(name), underscored(name)): value for name, value in given.items()}
    config: dict[str, Any] = {}
    for name, value in values.items():
        if name in _STORE_TYPES:
            if value.upper() != "PEM":
                raise ValueError(
                    f"{_dotted(name)}: expected PEM, the only type that Python reads, found {value!r}"
                )
        elif name == _ENDPOINT_CHECK:
            config["ssl_check_hostname"] = bool(value)
        elif name == _JAAS_CONFIG:
            config["sasl_plain_username"], password = _credentials(value)
            config["sasl_plain_password"] = Secret(password)
        else:
            config[name] = parse_option(name, value, defaults)
    for store, kind in (
        ("ssl_keystore_location", _STORE_TYPES[0]),
        ("ssl_truststore_location", _STORE_TYPES[1]),
    ):
        if any(underscored(name) == store for name in given) and kind not in values:
            raise ValueError(
                f"{_dotted(store)}: expected {_dotted(kind)}=PEM beside it, the only type that Python reads"
            )
    return config


def underscored(name: str) -> str:
    return name.strip().lower().replace(".", "_")


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def parse_option(name: str, value: str, defaults: Mapping[str, Any]) -> Any:
    """Parse the text of one option of a client whose defaults these are. Raises as `parse_client_config`."""
    if name not in defaults:
        known = [*defaults, *_STORES, *_STORE_TYPES, _ENDPOINT_CHECK, _JAAS_CONFIG]
        known_name("client option", name, known)
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
        raise ValueError(f"client option {name!r}: expected it left out, as it takes no text")
    try:
        parsed = parse(value)
        return Secret(parsed) if isinstance(parsed, str) and is_secret(name) else parsed
    except ValueError:
        expected = _EXPECTED.get(parse, "a number")
        raise ValueError(f"client option {name!r}: expected {expected}, found {value!r}") from None


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
            "sasl.jaas.config: expected a PlainLoginModule or ScramLoginModule with username and password; for others "
            "set kafka-python's sasl_ options"
        )
    return options["username"], options["password"]
