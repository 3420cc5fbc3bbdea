"""A consumer in a process of its own, driven by lines of JSON: what to consume in, what it came to out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

from tests.serve import raw_consumer
from tests.serve.raw_consumer import Consumed, Consumption, ConsumptionError

from bench import ROOT
from bench.serve import librdkafka

RAW, LIBRDKAFKA = "raw", "librdkafka"
_WAYS: dict[str, Callable[[Consumption], Consumed]] = {
    RAW: raw_consumer.consume,
    LIBRDKAFKA: librdkafka.consume,
}


class Client:
    """A consumer that waits while nothing is asked of it; a context manager."""

    def __init__(self, way: str) -> None:
        self.name = way
        command = [sys.executable, "-m", "bench.serve.client", way]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def consume(self, wanted: Consumption) -> Consumed:
        """Raises ConsumptionError for whatever went wrong in the other process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asdict(wanted)), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or '{"error": "the client ended"}')
        if "error" in answer:
            raise ConsumptionError(answer["error"])
        return Consumed(**answer)


def main(way: str) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        ends = {int(partition): end for partition, end in asked.pop("ends").items()}
        try:
            answer = asdict(_WAYS[way](Consumption(ends=ends, **asked)))
        except (ConsumptionError, OSError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
