"""The mutators of targets whose inputs have a structure. The other targets have libFuzzer's own."""

from __future__ import annotations

import random
from collections.abc import Callable

import atheris

from fuzz import seeds
from fuzz.message_mutation import MUTATORS
from fuzz.mutation import Mutator

PLAIN_TARGETS = (
    "codec",
    "client_request",
    "coordinators",
    "broker_file",
    "record_lines",
    "protobuf",
    "avro",
    "json_payloads",
)
CustomMutator = Callable[[bytes, int, int], bytes]  # of an input, the most bytes of the result, and a seed


def mutator_of(name: str, options_length: int) -> CustomMutator | None:
    if name in PLAIN_TARGETS:
        return None
    own = [data[1:] for data in seeds.inputs(name)] if name == "metadata" else seeds.record_sets()
    mutator = Mutator(own, lambda data: atheris.Mutate(data, len(data) + 64))

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        options, body = data[:options_length].ljust(options_length, b"\0"), data[options_length:]
        if rng.random() < 0.1:
            return atheris.Mutate(data, max_size)
        if name in MUTATORS:
            changed = MUTATORS[name](data, rng, lambda part: atheris.Mutate(part, len(part) + 64))
            return atheris.Mutate(data, max_size) if changed is None else changed[:max_size]
        if rng.random() < 0.2:
            options = atheris.Mutate(options, options_length).ljust(options_length, b"\0")
        if name in ("log", "repair"):
            return mutate_log(options, body, rng)[:max_size]
        return (options + mutator.record_set(body, seed))[:max_size]

    def mutate_log(options: bytes, body: bytes, rng: random.Random) -> bytes:
        """The log more often than its indexes."""
        from fuzz.log import SIZES, Input

        given = Input(options + body)
        if rng.random() < 0.6:
            given.log = mutator.record_set(given.log, rng.getrandbits(32))
        else:
            chosen = rng.randrange(len(given.indexes))
            given.indexes[chosen] = atheris.Mutate(given.indexes[chosen], 200)
        sizes = map(len, given.indexes)
        head = SIZES.pack(given.cut, given.offset, given.time, given.run_bytes, *sizes)
        return b"".join((head, *given.indexes, given.log))

    return mutate
