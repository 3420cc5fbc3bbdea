"""Errors that a Kafka client only logs, for the message of the error that it raises.

If no broker answers, kafka-python raises only that the time is over. It logs the reason: a refused connection, a failed
TLS handshake, a wrong password.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

from kafkafmt.client.credentials import REFUSALS

_LOGGER = logging.getLogger("kafka")
_BAD_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
# Alerts of TLS by which the other side refuses a certificate: ours, or that none was sent.
_REFUSED_CERTIFICATE = re.compile(r"_ALERT_(?:\w*CERTIFICATE\w*|UNKNOWN_CA)\b")
_BAD_CREDENTIALS = "SaslAuthenticationFailedError"
_BAD_MECHANISM = "UnsupportedSaslMechanismError"
# A transport or a connection as kafka-python shows it, with the address of the broker and our port.
_CONNECTION = re.compile(r"<Kafka\w+ [^\[]*\[(.+?)<-\d+\][^>]*>")
_CLOSED = "socket disconnected"
_SASL_HINT = ", as brokers do if they do not accept a user, a password or a mechanism"


class LoggedError(logging.Handler):
    """The first error that kafka-python logs within a block.

    It may be of another client of the process, if that logs an error at the same time.
    """

    _lock = Lock()  # of the next two
    _blocks = 0
    _propagated = True

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._message = ""

    def explain(self, error: Exception, config: Mapping[str, Any]) -> str:
        """Return why a client could not connect: `error`, unless the logged error says more. config: of the client."""
        if isinstance(error, REFUSALS):
            return f"the broker refuses the credentials ({error})"
        cause = self.cause(config)
        if _BAD_CERTIFICATE in self._message:
            return f"the broker's certificate is not trusted{cause}"
        if _BAD_CREDENTIALS in self._message:
            return f"the broker refuses the credentials{cause}"
        if _BAD_MECHANISM in self._message:
            return f"the broker does not accept the mechanism of SASL{cause}"
        if _REFUSED_CERTIFICATE.search(self._message):
            return f"the broker refuses the client's certificate{cause}"
        if self._message.endswith(_CLOSED):
            return f"the broker closes the connection{cause}"
        return f"no broker answers: {error}{cause}"

    def cause(self, config: Mapping[str, Any]) -> str:
        """Return the error in parentheses, for the end of a message; empty without one. config: of the client."""
        if not self._message:
            return ""
        is_sasl = "SASL" in config.get("security_protocol", "")
        # kafka-python may lose the answer of a broker that closes the connection after it.
        hint = _SASL_HINT if is_sasl and self._message.endswith(_CLOSED) else ""
        return f" ({self._message}{hint})"

    def emit(self, record: logging.LogRecord) -> None:
        if self._message:
            return
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            self._message = _CONNECTION.sub(r"\1", record.getMessage().partition("\n")[0])
        elif isinstance(error, OSError):  # of a socket
            self._message = str(error)
        else:  # of the decoder of a response: the message names a task of kafka-python
            self._message = f"malformed response: {str(error) or type(error).__name__}"

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what kafka-python logs within the block from the log, unless the level is DEBUG: it logs many errors."""
        cls = type(self)
        with cls._lock:
            if not cls._blocks:
                cls._propagated = _LOGGER.propagate
                _LOGGER.propagate = cls._propagated and _LOGGER.isEnabledFor(logging.DEBUG)
            cls._blocks += 1
        _LOGGER.addHandler(self)
        try:
            yield
        finally:
            _LOGGER.removeHandler(self)
            with cls._lock:
                cls._blocks -= 1
                if not cls._blocks:
                    _LOGGER.propagate = cls._propagated
