"""Which release of Kafka writes which messages and versions."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from broker.jars import KAFKA, KAFKA_4, KAFKA_4_0
from kafkafmt.schemas import Message
from schemas.kafka_messages import Request, class_names
from schemas.samples import UNKNOWN_TAGS, random_json

RELEASES = {"3.9": KAFKA, "4.0": KAFKA_4_0, "4.3": KAFKA_4}
# The releases in which the name of a message has its early layout.
EARLY = {
    "3.9": {"ShareGroupMetadataValue", "ShareGroupPartitionMetadataValue"},
    "4.0": {
        "ShareGroupMetadataValue",
        "ShareGroupStatePartitionMetadataValue",
        "ShareSnapshotValue",
        "ShareUpdateValue",
    },
    "4.3": set(),
}
NEWER_THAN_4_0 = {("RegisterBrokerRecord", 4), ("BrokerRegistrationChangeRecord", 3)}


def is_of(made: type[Message], version: int, release: str) -> bool:
    """Whether a release writes this class and version."""
    name = made.SCHEMA.name
    is_early = made.__name__.startswith("Early")
    return (
        name in class_names(RELEASES[release])
        and is_early == (name in EARLY[release])
        and (release == "4.3" or (name, version) not in NEWER_THAN_4_0)
    )


def requests(
    made: type[Message], version: int, release: str, random: Random, count: int
) -> Iterator[Request]:
    """Requests for random messages, every third with unknown tagged fields.

    Before 4.1 the version of a key is the number of its record type.
    """
    schema = made.SCHEMA
    is_key = schema.name.endswith("Key") and schema.api_key is not None
    kafka_version = schema.api_key if is_key and release != "4.3" else version
    for number in range(count):
        tags = UNKNOWN_TAGS if version in schema.flexible and number % 3 == 0 else {}
        yield Request(schema.name, kafka_version or 0, random_json(schema, version, random), tags)
