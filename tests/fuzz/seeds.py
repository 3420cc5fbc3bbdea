"""Seeds: small record sets of every kind, from the tests' samples and, where they are at hand, the vectors
that Kafka's own code wrote (`../shared/golden` beside the repository); and small logs with their indexes. The first
inputs of a target are its seeds, and the corpus that earlier fuzzing left.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import random
import struct
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from kafka.protocol.api_key import ApiKey

import reference as ref
from endpoints import raw_client
from endpoints.requests import Wanted, fetch, list_offsets, metadata, offset_for_leader_epoch
from fuzz import avro, broker_file, json_payloads, protobuf
from fuzz.client_request import CASES as CLIENT_REQUESTS
from fuzz.coordinators import NULL, input_of
from fuzz.corpora import corpus
from fuzz.gateway import RESPONSE
from fuzz.log import SIZES
from fuzz.record_lines import NULL_KEY
from fuzz.response import CASES
from fuzz.schemas import CASES as MESSAGES
from internal_topics.metadata_logs import FOLDER as METADATA
from kafkafmt.log import PartitionLog
from kafkafmt.schemas import (
    CONTROL_RECORDS,
    GROUP_RECORDS,
    METADATA_RECORDS,
    REMOTE_LOG_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
)
from kafkafmt.server.wire import SUPPORTED
from kernels.wire_messages import FETCH_VERSIONS, fetch_sample, produce_sample, produced_by_kernel
from log.coordinators import FOLDER as COORDINATORS
from records.samples import DAY, EVERY_KIND, SAMPLES, end_marker
from reference import Row
from repair.damaged import damaged_log
from schemas.record_objects import TOPICS, record_pairs
from schemas.vectors import vectors
from server import messages

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "golden" / "records.jsonl.xz"
SEED_RECORDS = 12
DAMAGED_LOGS = 20
FLEXIBLE_FETCH = 12
MAX_VECTORS, MAX_VECTOR_BYTES = 100, 4000


def record_sets() -> list[bytes]:
    samples = list(SAMPLES.values())
    pairs = [first + second for first, second in pairwise(samples)]
    return [*samples, *pairs, EVERY_KIND, *_vectors()]


def _vectors() -> list[bytes]:
    if not VECTORS.exists():
        return []
    with lzma.open(VECTORS, "rt") as lines:
        rows = (json.loads(line) for line in lines)
        inputs = [base64.b64decode(row["input"]) for row in rows if row["kind"] == "records"]
    return sorted((one for one in inputs if len(one) <= MAX_VECTOR_BYTES), key=len)[:MAX_VECTORS]


def _messages() -> list[bytes]:
    """The smallest messages of each kind and version that Kafka wrote, and such that begin as records do."""
    chosen: dict[str, bytes] = {}
    for one in sorted(vectors(), key=lambda one: len(one.data)):
        number = MESSAGES.index((one.message, one.version)).to_bytes(2, "big")
        chosen.setdefault(str(one), number + b"\0" + one.data)
    records = []
    for types in (GROUP_RECORDS, TRANSACTION_RECORDS, SHARE_RECORDS):
        for api_key, kind in types.items():
            key = api_key.to_bytes(2, "big") + (kind.key().encode(0) if kind.key else b"")
            records.append(bytes([0, 0, len(key)]) + key + b"\0\0" + kind.value().encode(0))
    for types in (METADATA_RECORDS, REMOTE_LOG_RECORDS):
        for api_key, kind in types.items():
            records.append(bytes([0, 0, 0, 1, api_key, 0]) + kind.value().encode(0))
    for api_key, kind in CONTROL_RECORDS.items():
        version = b"\0\0" if api_key < 2 else b""  # the others begin with their version
        records.append(bytes([0, 0, 4, 0, 0, 0, api_key]) + version + kind.value().encode(0))
    return [*chosen.values(), *records]


def inputs(target: str) -> list[bytes]:
    """The first inputs of a target, options included: its seeds and its corpus."""
    return generated(target) + corpus(target)


def generated(target: str) -> list[bytes]:
    """The seeds of a target, options included."""
    return _INPUTS[target]()


def _metadata() -> list[bytes]:
    (snapshot,) = METADATA.glob("*.checkpoint")
    log = METADATA / f"{0:020}.log"
    return [bytes([1]) + snapshot.read_bytes(), bytes([0]) + log.read_bytes()]


def _record_lines() -> list[bytes]:
    return [
        bytes([number | (NULL_KEY if key is None else 0)])
        + struct.pack(">H", len(key or b""))
        + (key or b"")
        + (value or b"")
        for number, topic in enumerate(TOPICS)
        for key, value in record_pairs(topic, random.Random(topic))
    ]


def _codec() -> list[bytes]:
    return [
        bytes([codec - 1, 2, 0]) + ref.compress(codec, plain)
        for codec in range(1, 5)
        for plain in (b"", b"a", b"abc" * 100, EVERY_KIND)
    ]


def _coordinators() -> list[bytes]:
    """The records of the coordinators of real brokers, a few at a time."""
    found = []
    for path in sorted(COORDINATORS.glob("*/__[ct]*_[os]*-0")):
        records = [(one.key, one.value) for one in PartitionLog(path).records() if one.key is not None]
        short = [one for one in records if len(one[0]) < NULL and len(one[1] or b"") < NULL]
        is_state = path.name.startswith("__transaction_state")
        firsts = range(0, len(short), SEED_RECORDS)
        found += [input_of(254 + is_state, short[first : first + SEED_RECORDS]) for first in firsts]
    return found


def _responses() -> list[bytes]:
    return [
        bytes([number]) + (produce_sample if ours is produced_by_kernel else fetch_sample)(version)
        for number, (ours, _, version) in enumerate(CASES)
    ]


def _log_input(index: bytes, time_index: bytes, transaction_index: bytes, log: bytes) -> bytes:
    head = SIZES.pack(1, 11, 130, 100, len(index), len(time_index), len(transaction_index))
    return head + index + time_index + transaction_index + log


def _logs() -> list[bytes]:
    """Sound logs with the indexes that belong to them."""
    found = []
    for codec in (ref.NONE, ref.LZ4):
        batches = [
            ref.batch_of([Row(offset + i, DAY + offset + i, b"k", b"value") for i in range(3)], codec=codec)
            for offset in range(0, 15, 3)
        ]
        aborted = [end_marker(15, commit=False)]
        position, index, time_index = 0, b"", b""
        for number, batch in enumerate(batches):
            if number:
                index += struct.pack(">ii", number * 3 + 2, position)
                time_index += struct.pack(">qi", DAY + number * 3 + 2, number * 3 + 2)
            position += len(batch)
        transactions = struct.pack(">hqqqq", 0, 7, 12, 15, 16)
        found.append(_log_input(index, time_index, transactions, b"".join(batches + aborted)))
    return found


def _damaged_logs() -> list[bytes]:
    """Logs with damage of every kind, and the sound ones."""
    found = []
    for seed in range(DAMAGED_LOGS):
        with tempfile.TemporaryDirectory() as folder:
            damaged = damaged_log(Path(folder, "t-0"), seed).folder
            log = b"".join(path.read_bytes() for path in sorted(damaged.glob("*.log")))
            found.append(_log_input(b"", b"", b"", log))
    return found + _logs()


def _requests() -> list[bytes]:
    """Every API at every version that an endpoint serves, and such as get something of the logs of tests/data."""
    some = [
        (fetch(Wanted("none"), Wanted("upgraded", 0, 60, 500)), range(13)),  # by name
        (list_offsets(("segments", 0, 1_700_000_003_000), ("none", 0, -1)), SUPPORTED[ApiKey.ListOffsets]),
        (metadata(["none", "partitions"]), SUPPORTED[ApiKey.Metadata]),
        (offset_for_leader_epoch(("none", 0, 0)), SUPPORTED[ApiKey.OffsetForLeaderEpoch]),
    ]
    any_version = [
        messages.frame(messages.filled(messages.request_class(api_key), version))
        for api_key, versions in SUPPORTED.items()
        for version in versions
    ]
    framed = [raw_client.frame(request, version, 1) for request, versions in some for version in versions]
    return any_version + [one[raw_client.SIZE.size :] for one in framed]


def _gateway() -> list[bytes]:
    """Requests to split, and responses in pieces of each size up to 8 bytes."""
    split = (ApiKey.Produce, ApiKey.Fetch)
    requests = [
        messages.frame(messages.filled(messages.request_class(api_key), version))
        for api_key in split
        for version in SUPPORTED[api_key]
    ]
    responses = [
        bytes([RESPONSE | number, piece]) + fetch_sample(version)
        for number, version in enumerate(FETCH_VERSIONS)
        for piece in range(8)
    ]
    return [b"\0\0" + one for one in requests] + responses


def _kernel_records() -> list[bytes]:
    """Each batch and message of the samples, decompressed, in each way to convert it."""
    batches = [one for data in SAMPLES.values() for one in ref.read(data)]
    plain = [
        one.data[: ref.BATCH_OVERHEAD] + ref.decompress(one.codec, one.payload)
        if one.magic == 2
        else one.data
        for one in batches
    ]
    return [bytes([flags, flags % 3]) + one for one in plain for flags in range(8)]


def _kernel_text() -> list[bytes]:
    texts = (
        *(
            "key",
            '"\\\n\x01',
            "\u00e9\u20ac\U0001f600" * 3,
            'plain text of many words"',
            '"\\ud83d\\ude00\\n"',
        ),
        *("0", "-1", "1.5e-7", "18446744073709551615", "123456789012345678901234567890e-20", "4.9e-324"),
        *("2024-02-29", "1999-12-31T23:59:60.123456Z", "0001-01-01 00:00:00.000+14:00"),
    )
    no_text = (b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82")
    varints = (b"\x01", b"\xac\x02", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
    return [
        bytes([chosen]) + one
        for chosen in range(7)
        for one in (*(text.encode() for text in texts), *no_text, *varints)
    ]


def _kernel_fields() -> list[bytes]:
    """The frames of Fetch responses, and fields of every kind in them."""
    return [
        bytes([version >= FLEXIBLE_FETCH, 20]) + bytes(range(first, first + 20)) + fetch_sample(version)
        for version in FETCH_VERSIONS
        for first in range(11)
    ]


_INPUTS: dict[str, Callable[[], list[bytes]]] = {
    "decode": lambda: [bytes([0xFF - number % 2]) + one for number, one in enumerate(record_sets())],
    "convert": lambda: [
        bytes([to_magic, fallback, number % 6, number % 20]) + one
        for number, one in enumerate(record_sets())
        for to_magic, fallback in ((0, 0), (1, 1), (2, 0))
    ],
    "forward": lambda: [bytes([number % 32]) + one for number, one in enumerate(record_sets())],
    "produce": lambda: [bytes([version]) + one for one in record_sets() for version in (2, 9)],
    "log": lambda: [_log_input(b"", b"", b"", one) for one in record_sets()] + _logs(),
    "repair": lambda: [_log_input(b"", b"", b"", one) for one in record_sets()] + _damaged_logs(),
    "codec": _codec,
    "request": _requests,
    "response": _responses,
    "client_request": lambda: [
        bytes([number]) + bytes(range(length))
        for number in range(len(CLIENT_REQUESTS))
        for length in (0, 200)
    ],
    "gateway": _gateway,
    "schemas": _messages,
    "coordinators": _coordinators,
    "broker_file": broker_file.seeds,
    "metadata": _metadata,
    "record_lines": _record_lines,
    "protobuf": protobuf.seeds,
    "avro": avro.seeds,
    "json_payloads": json_payloads.seeds,
    "kernel_records": _kernel_records,
    "kernel_text": _kernel_text,
    "kernel_fields": _kernel_fields,
}
TARGETS = tuple(_INPUTS)


def main() -> None:
    """Print the targets. With TARGET and FOLDER, write a target's first inputs; with `--seeds` too, only its seeds."""
    if len(sys.argv) == 1:
        print(*TARGETS)
        return
    target, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for data in (generated if "--seeds" in sys.argv else inputs)(target):
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main()
