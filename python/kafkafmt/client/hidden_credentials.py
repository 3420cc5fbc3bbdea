"""Keeps credentials out of kafka-python's log, in which a program may keep messages of every level.

At DEBUG one module of it logs each request and response, another one all bytes of a connection as well. The token of
SASL/PLAIN is the password.

Without TLS it also warns that SCRAM sends credentials in the clear. SCRAM sends no password.
"""

from __future__ import annotations

import logging

_LOGGERS = ("kafka.net.connection", "kafka.protocol.parser")
_SCRAM_LOGGER = "kafka.net.sasl.scram"
_SCRAM_WARNING = "Exchanging credentials in the clear"


def hide_credentials() -> None:
    """Leave out what kafka-python logs of SASL, and of bytes, from now on. A second call does nothing."""
    logging.getLogger(_SCRAM_LOGGER).addFilter(_is_no_scram_warning)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_tells_no_credentials)


def _is_no_scram_warning(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_SCRAM_WARNING)


def _tells_no_credentials(record: logging.LogRecord) -> bool:
    arguments = record.args if isinstance(record.args, tuple) else ()
    return not any(
        isinstance(one, (bytes, bytearray, memoryview)) or type(one).__name__.startswith("Sasl")
        for one in arguments
    )
