"""Every writer is refused while another process has the lock of a log directory, before it touches anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.logs import write_log
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config
from locks.writers import ENDPOINT, WRITERS, held, is_free, traces


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A log directory with more than the other one has."""
    for number in range(2):
        write_log(tmp_path / "source" / f"orders-{number}")
    set_topic_config(tmp_path / "source", "orders", TopicConfig(2))
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A log directory that all of them could write to: its last segment ends with half a batch."""
    folder = write_log(tmp_path / "target" / "orders-0", 3)
    (tmp_path / "target" / "meta.properties").write_text("version=1\n")
    last = max(folder.glob("*.log"))
    with last.open("ab") as file:
        file.write(last.read_bytes()[:50])
    (folder / ".00000000000000000000.log.0123456789abcdef.tmp").write_bytes(b"of a dead writer")
    return tmp_path / "target"


@pytest.mark.parametrize("name", [*WRITERS, "serve"])
def test_writer_when_a_broker_has_the_directory_then_is_refused_and_touches_nothing(
    name: str, source: Path, target: Path
) -> None:
    write = {**WRITERS, "serve": ENDPOINT}[name]
    with held(target) as process:
        before, beside = traces(target), sorted(target.parent.iterdir())
        refused = write(source, target)
        assert refused is not None, "it was not refused"
        assert str(target) in refused
        assert "a Kafka broker or another writer" in refused
        assert str(process) in refused
        assert traces(target) == before
        assert sorted(target.parent.iterdir()) == beside


@pytest.mark.parametrize("name", WRITERS)
def test_writer_when_nothing_is_in_its_way_then_leaves_the_directory_to_brokers(
    name: str, source: Path, target: Path
) -> None:
    for path in target.glob("orders-0/*"):
        path.unlink()
    assert WRITERS[name](source, target) is None
    assert is_free(target)
