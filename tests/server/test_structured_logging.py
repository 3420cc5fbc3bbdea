"""Logs: JSON lines that hold what they are about, also those of other libraries, and text for people."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

from kafkafmt.server.structured_logging import RateLimitedLog

PROGRAM = """
import asyncio, logging, structlog
from kafkafmt.server.structured_logging import bind_client_id, bind_connection, configure_logs

configure_logs({log_format!r}, {level!r})
log = structlog.get_logger()

async def connection(number):
    bind_connection(number, f"127.0.0.1:{{number}}")
    await asyncio.sleep(0)
    bind_client_id("x" * 1000 if number == 2 else {client_id!a})
    await asyncio.sleep(0)
    log.info("answered", api="Fetch")

async def main():
    structlog.contextvars.bind_contextvars(worker=3)
    await asyncio.gather(connection(1), connection(2))
    log.debug("detail")
    logging.getLogger("asyncio").warning("slow %s", {callback!a})
    password = "-".join(["wonder", "land"])
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("failed")
    try:
        raise ValueError({callback!a})
    except ValueError:
        log.exception("failed")

asyncio.run(main())
"""


def logged(log_format: str, level: str, client_id: str = "c", callback: str = "callback") -> list[str]:
    """The lines that a program logs to a pipe."""
    program = PROGRAM.format(log_format=log_format, level=level, client_id=client_id, callback=callback)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    return run.stderr.splitlines()


def test_logs_when_not_for_a_terminal_then_are_json_lines_bound_to_their_connections() -> None:
    first, second, foreign, failed, _ = map(json.loads, logged("auto", "info"))
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "answered",
        "api": "Fetch",
        "level": "info",
        "worker": 3,
        "connection": 1,
        "client": "127.0.0.1:1",
        "client_id": "c",
    }
    assert (second["connection"], second["client_id"]) == (2, "x" * 200)
    assert (foreign["event"], foreign["level"]) == ("slow callback", "warning")
    assert "connection" not in foreign
    assert "ZeroDivisionError" in failed["exception"]


def test_logs_when_a_level_is_asked_for_then_begin_there() -> None:
    assert "detail" in [json.loads(line)["event"] for line in logged("json", "debug")]
    assert {json.loads(line)["level"] for line in logged("json", "warning")} == {"warning", "error"}


def test_logs_when_text_then_can_be_read_without_colours() -> None:
    first = logged("text", "info")[0]
    assert "answered" in first
    assert "connection=1" in first
    assert "\x1b" not in first


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_logs_when_something_fails_then_have_a_traceback_without_local_variables(log_format: str) -> None:
    text = "\n".join(logged(log_format, "info"))
    assert "ZeroDivisionError" in text
    assert "wonder-land" not in text


@pytest.mark.parametrize("client_id", ["\x1b[2J\x1b]0;mine\x07", "a\nb", "\x9b31m", "\u202etxt"])
def test_logs_when_text_then_clients_cannot_command_the_terminal(client_id: str) -> None:
    line = logged("text", "info", client_id)[0]
    assert line.isprintable()
    assert f"client_id={client_id!r}" in line


@pytest.mark.parametrize("message", ["\x1b[2J\x1b]0;mine\x07", "a\nb", "\x9b31m", "\u202etxt"])
def test_logs_when_text_then_messages_of_others_cannot_command_the_terminal(message: str) -> None:
    """Those of libraries and of exceptions may have text of a broker or a client."""
    lines = logged("text", "info", callback=message)
    assert all(line.isprintable() for line in lines)
    assert ascii(message)[1:-1] in next(line for line in lines if "slow " in line)


def test_logs_when_text_then_lines_of_a_message_do_not_look_like_lines_of_the_log() -> None:
    forged = "2026-01-01T00:00:00.000000Z [info     ] all is well"
    lines = logged("text", "info", callback=f"first\n{forged}")
    assert forged not in lines
    assert f"  {forged}" in lines


def written(limited: RateLimitedLog, kinds: Iterable[object]) -> list[tuple[object, int]]:
    """What of events of these kinds is logged: the kind, and how many came."""
    lines: list[tuple[object, int]] = []

    def log(event: str, *, kind: object, times: int) -> None:
        assert event == "it happened"
        lines.append((kind, times))

    for kind in kinds:
        limited.write(log, kind, "it happened", kind=kind)
    return lines


def test_events_when_they_come_often_then_are_logged_every_ten_seconds_with_all_that_came_between() -> None:
    seconds = iter([0, 0, 1, 9, 10, 11, 100])
    limited = RateLimitedLog(lambda: next(seconds))
    assert written(limited, ["damage"] * 7) == [("damage", 1), ("damage", 4), ("damage", 2)]


def test_events_when_of_other_kinds_then_are_logged_by_themselves() -> None:
    limited = RateLimitedLog(lambda: 0.0)
    assert written(limited, ["damage", "damage", "refusal"]) == [("damage", 1), ("refusal", 1)]


def test_kinds_when_they_are_many_then_take_bounded_memory() -> None:
    limited = RateLimitedLog(lambda: 0.0)
    assert len(written(limited, range(5000))) == 5000
    assert len(limited._events) <= 1024


def test_connections_when_a_broker_is_down_then_each_failure_is_logged_once_in_ten_seconds() -> None:
    program = """
import logging
from kafkafmt.server.structured_logging import configure_logs

configure_logs("json", "info")
for number in (1, 1, 1, 2):
    logging.getLogger("kafkafmt.client.broker_connection").warning("connection to broker %d: refused", number)
    logging.getLogger("another").warning("as often as it occurs")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in run.stderr.splitlines()]
    limited = [(one["event"], one["times"]) for one in events if "times" in one]
    assert limited == [("connection to broker 1: refused", 1), ("connection to broker 2: refused", 1)]
    assert sum(one["event"] == "as often as it occurs" for one in events) == 4


def test_kafka_python_when_it_repeats_an_error_with_other_numbers_then_it_is_logged_once_in_ten_seconds() -> (
    None
):
    program = """
import logging
from kafkafmt.server.structured_logging import configure_logs

configure_logs("json", "info")
for port in range(5):
    logging.getLogger("kafka.net.connection").error("connection to port %d lost", port)
    logging.getLogger("kafka.cluster").info("as often as it occurs")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    events = [json.loads(line)["event"] for line in run.stderr.splitlines()]
    assert sorted(events) == ["as often as it occurs"] * 5 + ["connection to port 0 lost"]


def test_kafka_python_when_a_broker_restarts_then_a_lost_connection_is_one_warning() -> None:
    texts = {
        "kafka.net.transport": [
            "%s: socket disconnected",
            "%s: Error receiving network data",
            "%s: Error sending request data: %s",
            "%s: Abort (%s)",
        ],
        "kafka.net.connection": ["%s: Connection lost: %s"],
        "kafka.net.manager": ["Connection failed: %s"],
        "kafka.cluster": ["Metadata refresh: failed %s"],
        "kafka.coordinator.base": ["Error sending %s to node %s [%s]"],
        "kafka.coordinator.consumer": ["Rebalance listener %s.%s for group %s took %.3fs."],
    }
    program = f"""
import logging
from kafkafmt.server.structured_logging import configure_logs

for level in ("info", "error"):
    configure_logs("json", level)
    for name, formats in {texts!r}.items():
        for text in formats:
            arguments = ("a", "b", "c", 1.0)[:text.count("%")]
            logging.getLogger(name).error(text, *arguments)
    logging.getLogger("kafka.net.manager").error("something else")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in run.stderr.splitlines()]
    assert [(one["level"], one["event"]) for one in events] == [
        ("warning", "a: Connection lost: b"),
        ("warning", "Connection failed: a"),
        ("warning", "Metadata refresh: failed a"),
        ("warning", "Error sending a to node b [c]"),
        ("error", "something else"),
        ("error", "something else"),
    ]


def test_kafka_python_when_credentials_or_certificates_are_refused_then_it_stays_an_error() -> None:
    program = """
import logging
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError
from kafkafmt.server.structured_logging import configure_logs

configure_logs("json", "info")
for error in (
    SaslAuthenticationFailedError("refused"),
    KafkaConnectionError("Handshake failed: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    KafkaConnectionError("Handshake failed: [SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"),
    KafkaConnectionError("refused"),
    ConnectionResetError(104, "Connection reset by peer"),
):
    logging.getLogger("kafka.net.manager").error("Connection failed: %s", error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    levels = [json.loads(line)["level"] for line in run.stderr.splitlines()]
    assert levels == ["error", "error", "warning", "warning", "warning"]


def test_kafka_python_when_an_error_is_logged_as_a_warning_then_other_handlers_have_the_error() -> None:
    program = """
import logging
from kafkafmt.server.structured_logging import configure_logs

configure_logs("json", "info")
levels = []
class Other(logging.Handler):
    def emit(self, record):
        levels.append((record.levelname, hasattr(record, "times")))
logging.getLogger().addHandler(Other())
logging.getLogger("kafka.net.manager").error("Connection failed: %s", "refused")
print(levels)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(run.stderr)["level"] == "warning"
    assert run.stdout == "[('ERROR', False)]\n"
