"""Compare kafkafmt with Kafka's own record code on mutated record sets, for a time or until a difference is new.

`python -m fuzz.differential SECONDS` needs Java; `make fuzz-oracle` calls it. It prints its seed: KAFKAFMT_SEED
repeats a run. `python -m fuzz.differential FILE...` compares saved inputs.

An input is two bytes of options, then a record set. The first inputs are the seeds and the corpora of `decode`. An
input joins them if it has a new outcome: a format, a codec, an error of Kafka, a documented difference. Later inputs
are mutated from it. So no instrumentation is needed.

An input with another difference is saved in `build/fuzz/findings/oracle/`, and the exit status is 1.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fuzz import decode, seeds
from fuzz.mutation import EDGES, Mutator
from oracle.comparison import Comparison
from oracle.kafka import KafkaOracle

FINDINGS = Path(__file__).resolve().parents[2] / "build" / "fuzz" / "findings" / "oracle"
OPTIONS_LENGTH = 2
GROUP = 200  # inputs in a call of the JVM
REPORT_SECONDS = 60


class Inputs:
    """An endless supply of mutated inputs."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._mutator = Mutator(seeds.record_sets(), self._changed)
        self._pool = [one[decode.OPTIONS_LENGTH :] for one in seeds.inputs("decode")]
        self._outcomes: set[object] = set()

    def group(self) -> list[bytes]:
        rng = self._rng
        return [
            rng.randbytes(OPTIONS_LENGTH)
            + self._mutator.record_set(rng.choice(self._pool), rng.getrandbits(32))
            for _ in range(GROUP)
        ]

    def learn(self, data: bytes, outcomes: set[object]) -> None:
        """Keep an input that has a new outcome."""
        if not outcomes <= self._outcomes:
            self._outcomes |= outcomes
            self._pool.append(data[OPTIONS_LENGTH:])

    @property
    def outcomes(self) -> int:
        return len(self._outcomes)

    def _changed(self, data: bytes) -> bytes:
        """Bytes with one to four changes: a value, a bit, a part that is cut out, repeated or copied."""
        rng, changed = self._rng, bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            start = rng.randint(0, len(changed))
            length = min(rng.choice((1, 2, 4, 8, rng.randint(1, 64))), len(changed) - start)
            kind = rng.randrange(6)
            if kind == 0:
                del changed[start : start + length]
            elif kind == 1:
                changed[start:start] = changed[start : start + length]
            elif kind == 2:
                changed[start:start] = rng.randbytes(length)
            elif kind == 3 and length in EDGES:
                value = rng.choice(EDGES[length])
                changed[start : start + length] = value.to_bytes(length, rng.choice(("big", "little")))
            elif kind == 4:
                origin = rng.randint(0, len(changed) - length)
                changed[start : start + length] = changed[origin : origin + length]
            elif length:
                changed[start] ^= 1 << rng.randrange(8)
        return bytes(changed)


def comparison_of(data: bytes) -> Comparison:
    """Return the comparison of an input. Its options: the target format, and how many offsets to skip."""
    to_magic, skipped = data[0] % 2, data[1] if data[1] < 32 else 0
    records = data[OPTIONS_LENGTH:]
    base_offset = int.from_bytes(records[:8], "big", signed=True)
    first_offset = min(base_offset + skipped, 2**63 - 1) if skipped else 0
    return Comparison(records, to_magic, max(first_offset, 0))


def outcomes_of(answers: list[dict[str, Any]], comparison: Comparison) -> set[object]:
    """Return the kinds of results for an input: of each batch, and of the whole, without numbers in messages."""
    decoded, converted = answers
    of_batches = {
        (batch.get("magic"), batch.get("codec"), batch.get("crc_holds"), _kind(batch))
        for batch in decoded.get("batches", ())
    }
    of_all = {("decoded", _kind(decoded)), ("converted", comparison.to_magic, _kind(converted))}
    return of_batches | of_all | comparison.differences


def _kind(answer: dict[str, Any]) -> str:
    return re.sub(r"[^a-zA-Z ]+", "#", answer["error"] + answer["message"])[:100] if "error" in answer else ""


def compared(
    oracle: KafkaOracle, groups: Iterator[list[bytes]]
) -> Iterator[tuple[bytes, Comparison, list[Any]]]:
    """Ask Kafka about each input, and yield its answers. Kafka reads a group while the one before is compared."""

    def ask(group: list[bytes]) -> list[tuple[bytes, Comparison, list[Any]]]:
        comparisons = [comparison_of(data) for data in group]
        asked = [one.requests() for one in comparisons]
        answers = iter(oracle.ask([request for requests in asked for request in requests]))
        answered = [[next(answers) for _ in requests] for requests in asked]
        return list(zip(group, comparisons, answered, strict=True))

    with ThreadPoolExecutor(1) as executor:
        pending = executor.submit(ask, next(groups))
        for group in groups:
            done, pending = pending, executor.submit(ask, group)
            yield from done.result()
        yield from pending.result()


def fuzz(seconds: float) -> int:
    seed = int(os.environ.get("KAFKAFMT_SEED", random.randrange(2**32)))
    print(f"KAFKAFMT_SEED={seed}", flush=True)
    inputs, count, differences = Inputs(random.Random(seed)), 0, Counter[str]()
    started = time.monotonic()
    reported = started

    def groups() -> Iterator[list[bytes]]:
        while time.monotonic() - started < seconds:
            yield inputs.group()

    with KafkaOracle() as oracle:
        for data, comparison, answers in compared(oracle, groups()):
            count += 1
            try:
                comparison.check(answers)
            except Exception as difference:
                save(data, difference)
                return 1
            differences.update(comparison.differences)
            inputs.learn(data, outcomes_of(answers, comparison))
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                print(
                    f"{count} inputs, {count / (reported - started):.0f}/s, {inputs.outcomes} outcomes",
                    flush=True,
                )
    passed = time.monotonic() - started
    print(
        f"{count} inputs in {passed:.0f} s, {count / passed:.0f}/s, {inputs.outcomes} outcomes, no difference but:"
    )
    for name, times in differences.most_common():
        print(f"  {times:8} {name}")
    return 0


def save(data: bytes, difference: Exception) -> None:
    FINDINGS.mkdir(parents=True, exist_ok=True)
    path = FINDINGS / hashlib.sha1(data).hexdigest()
    path.write_bytes(data)
    print(f"{type(difference).__name__}: {difference}")
    print(
        f"saved: {path}\nto reproduce: PYTHONPATH=tests tools/with_java.sh .venv/bin/python -m fuzz.differential {path}"
    )


def reproduce(paths: list[Path]) -> None:
    with KafkaOracle() as oracle:
        for path in paths:
            comparison = comparison_of(path.read_bytes())
            comparison.check(oracle.ask(comparison.requests()))
            print(f"{path}: no difference but {sorted(comparison.differences)}")


def main() -> None:
    first = sys.argv[1]
    if first.isdigit():
        sys.exit(fuzz(float(first)))
    reproduce([Path(name) for name in sys.argv[1:]])


if __name__ == "__main__":
    main()
