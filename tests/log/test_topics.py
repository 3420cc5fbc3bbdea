"""Kafka's own topics are left out by every command and source unless they are asked for; checks look at all files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.logs import content, run, write_log

INTERNAL = ("__cluster_metadata", "__consumer_offsets")
TOPICS = (*INTERNAL, "_schemas", "orders")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for topic in TOPICS:
        write_log(tmp_path / "logs" / f"{topic}-0", 2)
    return tmp_path / "logs"


def summary(source: Path, work: Path, *arguments: str) -> set[str]:
    paths = [f"{source}/__*", source] if arguments else [source]
    lines = run("inspect", "--summary", "--json", *paths).stdout.splitlines()
    return {json.loads(line)["topic"] for line in lines}


def inspect(source: Path, work: Path, *arguments: str) -> set[str]:
    paths = [f"{source}/__*", source] if arguments else [source]
    lines = run("inspect", "--records", "--json", *paths).stdout.splitlines()
    return {json.loads(line)["topic"] for line in lines}


def convert(source: Path, work: Path, *arguments: str) -> set[str]:
    assert run("convert", source, work / "made", "--codec", "zstd", "--jobs", 1, *arguments).exit_code == 0
    return {path.name.rpartition("-")[0] for path in (work / "made").iterdir() if path.is_dir()}


def replay(source: Path, work: Path, *arguments: str) -> set[str]:
    lines = run("replay", source, *arguments).stdout.splitlines()
    return {json.loads(line)["topic"] for line in lines}


def mirror(source: Path, work: Path, *arguments: str) -> set[str]:
    assert run("mirror", source, work / "made", "--once").exit_code == 0
    return {path.name.rpartition("-")[0] for path in (work / "made").iterdir() if path.is_dir()}


def verify(source: Path, work: Path, *arguments: str) -> set[str]:
    lines = run("verify", source, "--json").stdout.splitlines()
    found = (json.loads(line) for line in lines)
    return {row["topic"] for row in found if "topic" in row}


Command = Callable[..., set[str]]
READERS: list[Command] = [summary, inspect, convert, replay]


@pytest.mark.parametrize("command", [*READERS, mirror])
def test_internal_topics_when_not_asked_for_then_are_left_out(
    logs: Path, tmp_path: Path, command: Command
) -> None:
    assert command(logs, tmp_path) == {"_schemas", "orders"}


@pytest.mark.parametrize("command", READERS)
def test_internal_topics_when_asked_for_then_are_read(logs: Path, tmp_path: Path, command: Command) -> None:
    assert command(logs, tmp_path, "--topics", "*") == set(TOPICS)


@pytest.mark.parametrize("command", READERS)
def test_internal_topic_when_its_folder_is_named_then_is_read(
    logs: Path, tmp_path: Path, command: Command
) -> None:
    assert command(logs / "__consumer_offsets-0", tmp_path) == {"__consumer_offsets"}


def test_verify_when_nothing_is_asked_for_then_checks_all_files(logs: Path, tmp_path: Path) -> None:
    assert verify(logs, tmp_path) == set(TOPICS)


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (("convert", "LOGS", "OUT", "--codec", "zstd", "--jobs", 1), "--topics '*' converts them, too"),
        (("inspect", "--summary", "LOGS"), "'LOGS/__*' names them"),
        (("replay", "LOGS", "OUT"), "--topics '*' reads them, too"),
        (("table", "LOGS", "OUT"), "--topics '*' reads them, too"),
        (("mirror", "LOGS", "OUT", "--once"), "a mirror does not copy them"),
    ],
)
def test_command_when_it_leaves_topics_out_then_one_line_names_them(
    logs: Path, tmp_path: Path, command: tuple[object, ...], remedy: str
) -> None:
    places = {"LOGS": str(logs), "OUT": str(tmp_path / "made")}
    told = run(*(places.get(str(argument), argument) for argument in command)).stderr
    remedy = remedy.replace("LOGS", str(logs))
    line = f"left out: __cluster_metadata, __consumer_offsets, Kafka's own; {remedy}"
    assert told.count("left out: ") == 1
    assert line in told


def test_verify_when_it_checks_all_topics_then_none_is_told_as_left_out(logs: Path) -> None:
    assert "left out" not in run("verify", logs).stderr


def test_directory_when_it_holds_internal_topics_alone_then_says_so(logs: Path, tmp_path: Path) -> None:
    for path in [*logs.glob("_schemas-0/*"), *logs.glob("orders-0/*")]:
        path.unlink()
    result = run("convert", logs, tmp_path / "made", "--codec", "zstd")
    assert result.exit_code != 0
    assert "no topic but Kafka's own" in result.stderr
    assert content(logs)
