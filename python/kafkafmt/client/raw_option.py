"""The options by which KIP-712 makes a client raw: `fetch.raw.bytes` and `send.raw.bytes`, with dots or underscores.

KIP-712, "Public Interfaces": they are options of the ordinary consumer and producer. True gives the raw class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kafkafmt.client.client_config import parse_option, underscored

RawOption = Literal["fetch_raw_bytes", "send_raw_bytes"]


def with_raw_option(configs: Mapping[str, Any], name: RawOption) -> dict[str, Any]:
    """Return the configuration with the option under its name with underscores.

    Raises ValueError if the option is given under both names, and TypeError if it is not a bool.
    """
    config = dict(configs)
    dotted = name.replace("_", ".")
    if dotted in config:
        if name in config:
            raise ValueError(f"{dotted} and {name}: expected one of them, as they are the same option")
        config[name] = config.pop(dotted)
    if not isinstance(config.get(name, False), bool):
        raise TypeError(f"{dotted}: expected True or False, found {config[name]!r}")
    return config


def refuse_raw(config: Mapping[str, Any], name: RawOption, cls: type, raw: type) -> None:
    """Raise ValueError if the configuration asks for a raw client of a class that handles records."""
    if config.get(name):
        raise ValueError(
            f"{name}: expected False: {cls.__name__} handles records; derive it from {raw.__name__}"
        )


def is_raw(configs: Mapping[str, Any], name: RawOption) -> bool:
    """Return whether the option asks for a raw client. Raises as `with_raw_option`."""
    return bool(with_raw_option(configs, name).get(name, False))


def split_raw_option(given: Mapping[str, str], name: RawOption) -> tuple[bool | None, dict[str, str]]:
    """Return the value of the option in a configuration of text, None if it is not given, and the other options.

    Raises ValueError for a value that is not a boolean.
    """
    value: bool | None = None
    others: dict[str, str] = {}
    for key, text in given.items():
        if underscored(key) == name:
            value = parse_option(name, text, {name: False}, key)
        else:
            others[key] = text
    return value, others
