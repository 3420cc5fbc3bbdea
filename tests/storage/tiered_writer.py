"""Segments in tiered storage, written by `TieredWriter.java` with the libraries that the plugin uses."""

from __future__ import annotations

import json
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any

from broker.jars import TIERED
from kafkafmt import FileRecords
from oracle.kafka import java

PROGRAM = Path(__file__).with_name("TieredWriter.java")
SECONDS = 120
KEY_ID = "key-1"


def kafka_id(name: str) -> str:
    """A UUID in Kafka's text. The first two characters are `-`, as they may be."""
    return "--" + urlsafe_b64encode(md5(name.encode()).digest()).decode()[2:22]


@dataclass(frozen=True)
class Transform:
    """What the writer does to the chunks of a log."""

    compressed: bool = False
    encrypted: bool = False
    chunk_size: int = 1000

    @property
    def name(self) -> str:
        return f"c{int(self.compressed)}e{int(self.encrypted)}-{self.chunk_size}"


def key_pair(folder: Path, name: str = KEY_ID) -> Path:
    """Write an RSA key pair as PEM, as the plugin takes it. Returns the path of the private key beside the other."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

    key, pem = generate_private_key(65537, 2048), serialization.Encoding.PEM
    path = folder / f"{name}.pem"
    path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


def segments_of(
    folder: Path, transform: Transform, private_key: Path, prefix: str = ""
) -> list[dict[str, Any]]:
    """What the writer is told of all segments of a partition's folder. prefix: of the keys of their objects."""
    topic, _, number = folder.name.rpartition("-")
    logs = sorted(folder.glob("*.log"))
    told = []
    for log, following in zip(logs, [*logs[1:], None], strict=True):
        base, next_offset = int(log.stem), _next_offset(log) if following is None else int(following.stem)
        segment: dict[str, Any] = {
            "source": str(log.with_suffix("")),
            "snapshot": str(folder / f"{next_offset:020d}.snapshot"),
            "prefix": prefix,
            "topic": topic,
            "topicId": kafka_id(topic),
            "partition": int(number),
            "segmentId": kafka_id(f"{topic}-{number}-{base}"),
            "startOffset": base,
            "endOffset": next_offset - 1,
            "leaderEpochs": {"0": base},
            "chunkSize": transform.chunk_size,
            "compressed": transform.compressed,
        }
        if transform.encrypted:
            segment |= {"keyId": KEY_ID, "publicKey": str(private_key.with_suffix(".pub"))}
        told.append(segment)
    return told


def _next_offset(log: Path) -> int:
    with FileRecords(log) as records:
        return int(records.index()["last_offset"][-1]) + 1


def write(target: Path, segments: Sequence[Mapping[str, Any]]) -> None:
    """Write segments below `target`."""
    target.mkdir(parents=True, exist_ok=True)
    specification = target.parent / f"{target.name}.json"
    specification.write_text(json.dumps({"target": str(target), "segments": segments}))
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", TIERED.classpath()]
    done = subprocess.run(
        [java("java"), *options, str(PROGRAM), str(specification)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
