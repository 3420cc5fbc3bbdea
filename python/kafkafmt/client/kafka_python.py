"""What kafka-python's own connections need to do the same as ours with the same options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkafmt.client.tls import ssl_context

_SCRAM = "SCRAM-"


def kafka_python_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a client of kafka-python, or of its connections, that `config` stands for.

    kafka-python 3.0 cannot read the file of `ssl_crlfile`, and asks on the terminal for the password of a key.

    Raises as `ssl_context`.
    """
    context = ssl_context(config)
    return sasl_config({**config, **({} if context is None else {"ssl_context": context})})


def sasl_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for kafka-python's mechanisms of SASL: it does not escape user names for SCRAM (RFC 5802)."""
    name = config.get("sasl_plain_username")
    if name is None or not (config.get("sasl_mechanism") or "").startswith(_SCRAM):
        return dict(config)
    return {**config, "sasl_plain_username": name.replace("=", "=3D").replace(",", "=2C")}
