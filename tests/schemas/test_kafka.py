"""Messages that Kafka's own generated classes write, of every type and version, decode to what Kafka reads in them."""

from __future__ import annotations

from random import Random

import pytest

from kafkafmt.schemas import TaggedField
from schemas.kafka_messages import write
from schemas.releases import RELEASES, is_of, requests
from schemas.samples import UNKNOWN_TAGS, message_classes, messages_and_versions

pytestmark = [pytest.mark.oracle, pytest.mark.full, pytest.mark.xdist_group("oracle")]

SAMPLES = 12  # of each message and version
EXPECTED_TAGS = tuple(TaggedField(int(tag), data) for tag, data in UNKNOWN_TAGS.items())


@pytest.mark.parametrize("release", RELEASES)
def test_messages_when_kafka_wrote_them_then_what_is_decoded_is_what_kafka_reads(
    release: str, seed: int
) -> None:
    random = Random(f"{seed} messages {release}")
    cases = [
        (made, version, request)
        for made, version in messages_and_versions()
        if is_of(made, version, release)
        for request in requests(made, version, release, random, SAMPLES)
    ]
    answers = write(RELEASES[release], [request for _, _, request in cases])
    for (made, version, request), answer in zip(cases, answers, strict=True):
        decoded = made.decode(answer.data, version)
        assert decoded.to_json(version) == answer.json, request
        assert decoded.encode(version) == answer.data, request
        if request.tags:
            assert decoded.unknown_tagged_fields == EXPECTED_TAGS, request
    assert len(cases) > 500


def test_message_classes_when_taken_together_then_each_is_written_by_a_release() -> None:
    written = {
        made for made, version in messages_and_versions() for each in RELEASES if is_of(made, version, each)
    }
    assert written == set(message_classes().values())
