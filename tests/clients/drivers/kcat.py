"""kcat: a process for each partition, or one in a group; its output says the lengths of what follows."""

from __future__ import annotations

import subprocess
from typing import IO

from confluent import settings
from driver import Range, Task

COMMIT_INTERVAL_MS = 50
FORMAT = r"%t %p %o %T %K %S\n%k%s\n"  # ... timestamp, lengths of key and value (-1: null), and both


def kcat(task: Task, *options: str) -> list[str]:
    """The command. -E: go on when the server is away; -u: hand each message out at once."""
    properties = {"auto.commit.interval.ms": COMMIT_INTERVAL_MS, **settings(task)}
    told = [f"-X{name}={str(value).lower()}" for name, value in properties.items()]
    return ["kcat", "-u", "-q", "-E", "-f", FORMAT, *told, *options]


def read(task: Task, wanted: Range) -> None:
    start = str(wanted.start) if task.time is None else f"s@{task.time}"
    where = ["-t", wanted.topic, "-p", str(wanted.partition), "-o", start]
    with subprocess.Popen(kcat(task, "-C", "-e", *where), stdout=subprocess.PIPE) as process:
        while task.is_reading(wanted.topic, wanted.partition) and tell(task, process):
            pass
        process.terminate()


def follow(task: Task, group: str) -> None:
    with subprocess.Popen(kcat(task, "-G", group, *task.topics), stdout=subprocess.PIPE) as process:
        while not task.is_done and tell(task, process):
            pass
        process.terminate()  # it commits what it has written, and leaves the group
        while tell(task, process):
            pass


def tell(task: Task, process: subprocess.Popen[bytes]) -> bool:
    """Tell of the next message; False where kcat has ended."""
    output = process.stdout
    assert output is not None
    line = output.readline()
    if not line:
        return False
    topic, *numbers = line.decode().split()
    partition, offset, timestamp, key_length, value_length = map(int, numbers)
    key, value = content(output, key_length), content(output, value_length)
    output.readline()
    task.record(topic, partition, offset, key, value, timestamp or None)
    return True


def content(output: IO[bytes], length: int) -> bytes | None:
    return None if length < 0 else output.read(length)


def main() -> None:
    task = Task()
    if task.group is not None:
        follow(task, task.group)
        return
    for wanted in task.ranges:
        read(task, wanted)


if __name__ == "__main__":
    main()
