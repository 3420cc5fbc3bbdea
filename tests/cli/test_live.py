"""`kafkafmt replay` and `kafkafmt table` of a real cluster.

Memory Management in Kafka Streams, "Deserialized Objects Buffering": a partition whose buffer is full is paused.
"Summary": every rebalance divides the memory of a thread again.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kafka.errors import KafkaError

from broker.broker import Broker
from cli.live import FIRST_TIMESTAMP, new_topic, produce, transaction
from cli.logs import command, is_one_line, json_lines, run
from kafkafmt._util.sizes import KIB, MIB
from kafkafmt.cli.log_selection import Selection
from kafkafmt.cli.topic_selection import LiveSettings, SelectedTopics
from kafkafmt.jobs.memory import CLUSTER, plan_for
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.streams import PartitionGroup
from kafkafmt.types import TopicPartition

pytest.importorskip("rocksdict")
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("live")]

PARTITIONS = 4
RECORDS = 3000
WAIT_SECONDS = 120


@pytest.fixture(scope="module")
def topic(any_broker: Broker) -> str:
    """Skewed partitions of all codecs, with transactions that were committed and aborted, and one that is open."""
    topic = new_topic(any_broker, "live", PARTITIONS)
    produce(any_broker, topic, PARTITIONS, records=4000)
    for name, commits in (("aborted", False), ("committed", True), ("open", None)):
        with transaction(any_broker, topic, name, commits=commits) as producer:
            for number in range(20):
                producer.send(topic, name.encode(), key=b"%d" % number, partition=number % 2)
    produce(any_broker, topic, PARTITIONS, records=200, first=4000)
    return topic


def source_of(broker: Broker, topic: str) -> str:
    return f"kafka://{broker.bootstrap}/{topic}"


def folder_replay(broker: Broker, topic: str, *options: object) -> str:
    return run("replay", broker.log_dir, "--topics", topic, *options).stdout


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    table = pq.read_table(path)
    return list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


def folder_table(broker: Broker, topic: str, path: Path) -> list[tuple[Any, ...]]:
    assert run("table", broker.log_dir, path, "--topics", topic).exit_code == 0
    return rows_of(path)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", [("--by-time",), ()], ids=["by time", "in order"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_replay_of_a_cluster_equals_that_of_its_folder(
    any_broker: Broker, topic: str, isolation: str, order: tuple[str, ...], threads: int
) -> None:
    options = (*order, "--isolation", isolation)
    result = run("replay", source_of(any_broker, topic), *options, "--threads", threads, "--memory", "32m")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == folder_replay(any_broker, topic, *options)
    assert result.stdout.count("\n") > 4000


@pytest.mark.parametrize(
    ("isolation", "bounds"),
    [
        ("read_committed", (5_003, 22_007)),
        ("read_committed", (None, 22_007)),
        ("read_uncommitted", (5_003, None)),
        ("read_uncommitted", (10**9, None)),
    ],
    ids=str,
)
def test_replay_of_a_cluster_when_it_has_a_range_of_time_equals_that_of_its_folder(
    any_broker: Broker, topic: str, isolation: str, bounds: tuple[int | None, int | None]
) -> None:
    times = [
        one
        for name, at in zip(("--from", "--to"), bounds, strict=True)
        if at is not None
        for one in (name, FIRST_TIMESTAMP + at)
    ]
    result = run("replay", source_of(any_broker, topic), *times, "--isolation", isolation)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == folder_replay(any_broker, topic, *times, "--isolation", isolation)


def test_topics_of_a_cluster_then_are_selected_by_names_and_globs(any_broker: Broker, topic: str) -> None:
    cluster, end = f"kafka://{any_broker.bootstrap}", ("--to", FIRST_TIMESTAMP + 1000)
    expected = run("replay", source_of(any_broker, topic), *end).stdout
    assert expected
    assert run("replay", cluster, "--topics", f"{topic[:-1]}?", *end).stdout == expected
    assert run("replay", cluster, "--topics", f"{topic},{topic}", *end).stdout == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_table_of_a_cluster_equals_that_of_its_folder(
    any_broker: Broker, topic: str, tmp_path: Path, threads: int
) -> None:
    result = run("table", source_of(any_broker, topic), tmp_path / "live", "--threads", threads, "--json")
    assert result.exit_code == 0, result.stderr
    assert rows_of(tmp_path / "live") == folder_table(any_broker, topic, tmp_path / "folder")
    summary = json.loads(result.stdout)
    assert summary["records"] > 4000
    assert summary["peak_bytes"] <= summary["memory_bytes"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "live"]


def test_replay_when_one_partition_has_nearly_all_bytes_then_memory_stays_within_the_budget(
    broker: Broker,
) -> None:
    """The other partitions have the earlier timestamps: its buffer waits for them."""
    topic = new_topic(broker, "skewed", 3)
    produce(broker, topic, 1, records=30_000, first=10**6)
    produce(broker, topic, 3, records=3000)
    result = run(
        "replay", source_of(broker, topic), "--by-time", "--memory", "14m", "--json"
    )  # the least is 13m
    assert result.exit_code == 0, result.stderr
    assert result.stdout == folder_replay(broker, topic, "--by-time")
    (summary,) = json_lines(result.stderr)
    assert summary["peak_bytes"] <= summary["memory_bytes"]


def test_partition_when_its_buffer_is_full_then_is_paused_until_it_has_room(broker: Broker) -> None:
    """Memory Management in Kafka Streams, "Deserialized Objects Buffering"."""
    topic = new_topic(broker, "full", 1)
    produce(broker, topic, 1, records=RECORDS)
    partition = TopicPartition(topic, 0)
    address = ClusterAddress((broker.bootstrap,), (topic,))
    source = SelectedTopics(
        Selection(address, None, "read_committed", "fail", False), LiveSettings(False, None, {})
    )
    offsets = []
    with source.open(plan_for(14 * MIB, 1, source=CLUSTER)) as readers:
        group = PartitionGroup(64 * KIB, least_bytes=64 * KIB)
        group.add(partition, readers.seek(partition, None))

        def fill() -> None:
            while wanting := group.wanting():
                for one in readers.ready(wanting):
                    run = readers.read(one)
                    if run is None:
                        group.finish(one)
                    elif group.feed(one, run) < len(run):
                        readers.seek(one, group.fetch_offset(one))

        fill()
        assert readers.ready([]) == ()
        assert readers.pauses == 1
        assert 0 < group.buffered_bytes <= 64 * KIB
        while True:
            while (taken := group.pop()) is not None:
                offsets.append(taken[1].offset)
            if len(offsets) == RECORDS:
                break
            fill()
            readers.ready([])
        assert readers.pauses > 1
    assert offsets == [*range(RECORDS)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("replay", "{}", "--topics", "x"), ["--topics: expected no topics in the address of the cluster"]),
        (("replay", "{}", "--by-time", "--follow", "--to", "2026-01-31"), ["--to ends each partition"]),
        (("replay", "{}", "--from", "2026-02-01", "--to", "2026-01-31"), ["no record is in between"]),
        (("replay", "{}", "--from-segment-start"), ["--from-segment-start is for a folder"]),
        (("replay", "{}", "--follow"), ["--follow needs --by-time"]),
        (("replay", "{}", "--group", "g"), ["--group needs --by-time"]),
        (("replay", "{}", "--by-time", "--max-idle", "1"), ["--max-idle is for --follow"]),
        (
            ("replay", "{}", "out", "--by-time", "--group", "g"),
            ["--group is for standard output or a cluster"],
        ),
        (("replay", "{}", "--by-time", "--follow", "--threads", "2"), ["--threads is not for a replay with"]),
        (("replay", ".", "--group", "g", "--by-time"), ["--group is for a cluster as source"]),
        (("table", ".", "out", "--follow", "--to", "-1h"), ["--to ends each partition"]),
        (("table", ".", "out", "--follow", "--engine", "spark"), ["--follow is for --engine local"]),
        (("table", ".", "out", "--source-config", "a=b"), ["--source-config is for a cluster as source"]),
        (("table", "{}", "out", "--engine", "spark"), ["a cluster as source is for --engine local"]),
        (("table", "{}-none", "out"), ["no topic"]),
        (("table", "kafka://localhost:1/a", "out"), ["no broker answers"]),
        (("table", "kafka://localhost", "out"), ["expected HOST:PORT, found 'localhost'"]),
        (("table", "{}", "out", "--source-config", "group.id=x"), ["group.id is not an option"]),
    ],
)
def test_wrong_arguments_are_one_line(
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    words: list[str],
) -> None:
    topic = new_topic(broker, "arguments", 1)
    monkeypatch.chdir(tmp_path)
    result = run(*(one.format(source_of(broker, topic)) for one in options))
    assert result.exit_code == 2
    assert is_one_line(result.stderr, words), result.stderr
    assert not list(tmp_path.iterdir())


def test_state_when_threads_are_others_then_is_refused_and_with_the_same_is_continued(
    broker: Broker, tmp_path: Path
) -> None:
    topic = new_topic(broker, "state", PARTITIONS)
    produce(broker, topic, PARTITIONS, records=300)
    options = ("--state", tmp_path / "state", "--json", "--threads")
    assert run("table", source_of(broker, topic), tmp_path / "1", *options, 2).exit_code == 0
    refused = run("table", source_of(broker, topic), tmp_path / "2", *options, 1)
    assert (refused.exit_code, "with threads 2, expected 1" in refused.stderr) == (2, True), refused.stderr
    produce(broker, topic, 1, records=50, first=10_000)
    again = run("table", source_of(broker, topic), tmp_path / "2", *options, 2)
    assert json.loads(again.stdout)["records"] == 50
    assert rows_of(tmp_path / "2") == folder_table(broker, topic, tmp_path / "folder")


# Commands that go on


class Running:
    """A command in a process of its own. It is ended by SIGTERM."""

    def __init__(self, path: Path, *arguments: object) -> None:
        self._out, self._errors = path.with_suffix(".out"), path.with_suffix(".err")
        with self._out.open("w") as out, self._errors.open("w") as errors:
            self.process = subprocess.Popen(command(*arguments), stdout=out, stderr=errors)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_so():
            assert self.process.poll() is None, self.errors
            assert time.monotonic() < deadline, self.errors
            time.sleep(0.05)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.wait()

    def wait(self) -> None:
        assert self.process.wait(WAIT_SECONDS) == 0, self.errors


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*arguments: object) -> Running:
        started.append(Running(tmp_path / f"command-{len(started)}", *arguments))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


class Group:
    """What the members of a group have committed."""

    def __init__(self, broker: Broker, topic: str, name: str) -> None:
        self._cluster = MirrorCluster(ClusterAddress((broker.bootstrap,)), {})
        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._name = name

    def is_at_end(self) -> bool:
        try:
            committed = self._cluster.group_offsets(self._name)
        except KafkaError:  # as long as the group has no coordinator
            return False
        ends = self._cluster.bounds(self._partitions, is_committed=True)
        return all(committed.get(one, 0) == ends[one][1] for one in self._partitions)

    def close(self) -> None:
        self._cluster.close()


@pytest.fixture
def grouped(broker: Broker) -> Iterator[tuple[str, Group]]:
    topic = new_topic(broker, "grouped", PARTITIONS)
    produce(broker, topic, PARTITIONS, records=1000)
    group = Group(broker, topic, f"{topic}-group")
    yield topic, group
    group.close()


def test_replay_that_follows_has_new_records_until_it_is_ended(
    broker: Broker, start: Callable[..., Running]
) -> None:
    topic = new_topic(broker, "followed", PARTITIONS)
    produce(broker, topic, 2, records=500)  # the others are empty, and are not waited for
    # Long enough for the first records of both partitions to come on a busy machine.
    running = start("replay", source_of(broker, topic), "--by-time", "--follow", "--max-idle", 2)
    expected = folder_replay(broker, topic, "--by-time")
    running.until(lambda: len(running.out) >= len(expected))
    assert running.out == expected
    produce(broker, topic, PARTITIONS, records=500, first=10**7)
    total = sorted(folder_replay(broker, topic).splitlines())
    running.until(lambda: running.out.count("\n") == len(total))
    running.end()
    assert sorted(running.out.splitlines()) == total
    assert f"replayed {len(total):,} records" in running.errors


def test_table_when_two_share_a_group_and_one_leaves_then_the_other_takes_over(
    broker: Broker, tmp_path: Path, grouped: tuple[str, Group], start: Callable[..., Running]
) -> None:
    topic, group = grouped

    def member(name: str) -> Running:
        state = ("--state", tmp_path / f"{name}.state", "--commit-interval", "0.2")
        source = source_of(broker, topic)
        return start(
            "table", source, tmp_path / name, "--follow", "--group", f"{topic}-group", "--json", *state
        )

    first = member("first")
    first.until(group.is_at_end)
    second = member("second")
    second.until(lambda: (tmp_path / "second.state" / "store").exists())
    produce(broker, topic, PARTITIONS, records=200, first=10**6)
    second.until(group.is_at_end)
    second.end()
    there = folder_table(broker, topic, tmp_path / "folder")
    own = rows_of(tmp_path / "second")
    assert own == [row for row in there if row[1] in {row[1] for row in own}]
    produce(broker, topic, PARTITIONS, records=200, first=2 * 10**6)
    first.until(group.is_at_end)
    first.end()
    assert rows_of(tmp_path / "first") == folder_table(broker, topic, tmp_path / "folder-2")
    summary = json.loads(first.out)
    assert summary["rebalances"] >= 2
    assert summary["peak_bytes"] <= summary["memory_bytes"]


def test_table_when_two_share_a_group_then_together_they_have_all_rows_once(
    broker: Broker, tmp_path: Path, grouped: tuple[str, Group], start: Callable[..., Running]
) -> None:
    """Both end when the group has reached the ends that the topic had at their start."""
    topic, _ = grouped
    source = source_of(broker, topic)
    both = [
        start("table", source, tmp_path / name, "--group", f"{topic}-group", "--commit-interval", "0.2")
        for name in ("first", "second")
    ]
    for one in both:
        one.wait()
    rows = sorted(rows_of(tmp_path / "first") + rows_of(tmp_path / "second"))
    assert rows == sorted(folder_table(broker, topic, tmp_path / "folder"))


def test_table_when_its_threads_share_a_group_then_has_all_rows(
    broker: Broker, tmp_path: Path, grouped: tuple[str, Group], start: Callable[..., Running]
) -> None:
    topic, _ = grouped
    source = source_of(broker, topic)
    one = start("table", source, tmp_path / "live", "--group", f"{topic}-group", "--threads", 2)
    one.wait()
    assert rows_of(tmp_path / "live") == folder_table(broker, topic, tmp_path / "folder")


def test_replay_when_a_group_has_committed_then_continues_there(
    broker: Broker, grouped: tuple[str, Group]
) -> None:
    topic, _ = grouped
    options = ("--by-time", "--group", f"{topic}-group")
    first = run("replay", source_of(broker, topic), *options)
    assert first.exit_code == 0, first.stderr
    assert sorted(first.stdout.splitlines()) == sorted(folder_replay(broker, topic).splitlines())
    produce(broker, topic, 2, records=100, first=10**6)
    second = run("replay", source_of(broker, topic), *options)
    everything = folder_replay(broker, topic).splitlines()
    assert sorted(first.stdout.splitlines() + second.stdout.splitlines()) == sorted(everything)
