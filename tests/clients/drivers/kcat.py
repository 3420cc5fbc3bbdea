"""kcat: a process for each partition, whose output says the lengths of what follows."""

from __future__ import annotations

import subprocess
from typing import IO

from confluent import settings
from driver import Range, Task

MAX_WAIT_MS = 50
FORMAT = r"%o %T %K %S\n%k%s\n"  # offset, timestamp, length of the key and of the value (-1: null), both


def command(task: Task, wanted: Range) -> list[str]:
    properties = {
        "fetch.wait.max.ms": MAX_WAIT_MS,
        "isolation.level": task.isolation,
        **settings(task.version),
    }
    where = ["-t", wanted.topic, "-p", str(wanted.partition), "-o", str(wanted.start)]
    options = [f"-X{name}={str(value).lower()}" for name, value in properties.items()]
    return ["kcat", "-C", "-u", "-q", "-e", "-b", task.bootstrap, *where, *options, "-f", FORMAT]


def content(output: IO[bytes], length: int) -> bytes | None:
    return None if length < 0 else output.read(length)


def main() -> None:
    task = Task()
    for wanted in task.ranges:
        with subprocess.Popen(command(task, wanted), stdout=subprocess.PIPE) as kcat:
            assert kcat.stdout is not None
            while task.is_reading(wanted.topic, wanted.partition) and (line := kcat.stdout.readline()):
                offset, timestamp, key_length, value_length = map(int, line.split())
                key, value = content(kcat.stdout, key_length), content(kcat.stdout, value_length)
                kcat.stdout.readline()
                task.record(wanted.topic, wanted.partition, offset, key, value, timestamp or None)
            kcat.terminate()


if __name__ == "__main__":
    main()
