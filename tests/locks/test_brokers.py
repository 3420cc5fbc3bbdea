"""Real brokers: no writer touches the log directory of one that runs, and none starts while a writer is at work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.broker import KAFKA_3, KAFKA_4, Broker, BrokerError, Kafka
from broker.produce import produce
from cli.logs import run, write_log
from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt.log import LogAppender, LogDirectory
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config
from locks.writers import ENDPOINT, WRITERS, Writer, batch, traces

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITION = re.compile(r".+-[0-9]+(\.[0-9a-f]+-(delete|stray))?$")


def names(directory: Path) -> set[str]:
    """What is in a log directory, without what a broker writes meanwhile: checkpoints, and other tests' topics."""
    found = {path.name for path in directory.iterdir() if "checkpoint" not in path.name}
    return {name for name in found if name.startswith("orders-") or not PARTITION.match(name)}


@pytest.mark.slow
def test_writer_when_a_broker_runs_then_is_refused_and_the_broker_goes_on(
    any_broker: Broker, tmp_path: Path
) -> None:
    if "orders-0" not in names(any_broker.log_dir):
        any_broker.create_topic("orders")
    source, folder = tmp_path / "source", any_broker.log_dir / "orders-0"
    for number in range(2):
        write_log(source / f"orders-{number}", 30)
    set_topic_config(source, "orders", TopicConfig(2))
    assert produce(any_broker, "orders", batch()) == 0
    before, beside = traces(folder), names(any_broker.log_dir)
    writers: dict[str, Writer] = {**WRITERS, "serve": ENDPOINT}
    for name, write in writers.items():
        refused = write(source, any_broker.log_dir)
        assert refused is not None, f"{name} was not refused"
        assert f"(process {any_broker.pid})" in refused, name
        assert traces(folder) == before, name
        assert names(any_broker.log_dir) == beside, name
    end = LogDirectory(any_broker.log_dir).partition(("orders", 0)).end_offset
    assert produce(any_broker, "orders", batch()) == 0
    assert LogDirectory(any_broker.log_dir).partition(("orders", 0)).end_offset == end + 1
    verified = run("inspect", "--verify", folder)
    assert verified.exit_code == 0, verified.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "kafka",
    [pytest.param(KAFKA_3, id="3.9", marks=pytest.mark.full), pytest.param(KAFKA_4, id="4.x")],
)
def test_broker_when_a_writer_is_at_work_then_does_not_start_until_it_ends(
    tmp_path: Path, kafka: Kafka
) -> None:
    broker = Broker(tmp_path, kafka=kafka)
    with LogAppender(broker.log_dir / "written-0") as log:
        log.append(batch(log.next_offset))
        with pytest.raises(BrokerError):
            broker.start()
        assert "Failed to acquire lock on file .lock" in broker.log_file.read_text()
    lock_log_directory(broker.log_dir, exclusive=True).close()
    with broker:
        broker.create_topic("orders")
        assert produce(broker, "orders", batch()) == 0
