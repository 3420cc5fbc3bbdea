"""What the producer does with answers for `max.message.bytes` that are of no use."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kafkafmt.client.limits import MAX_MESSAGE_BYTES, TopicLimits

NEVER_MS = 2.0**60


def described(topic: str, value: str) -> Any:
    config = SimpleNamespace(name=MAX_MESSAGE_BYTES, value=value)
    return SimpleNamespace(resource_name=topic, error_code=0, configs=[config])


@pytest.mark.parametrize("useless", [[], [described("a", "many")]], ids=["without the topic", "no number"])
def test_limit_when_an_answer_does_not_have_it_then_others_are_learned_and_it_is_asked_for_again(
    useless: list[Any],
) -> None:
    asked: list[Callable[[Any], object]] = []
    limits = TopicLimits(
        lambda _, on_done: asked.append(on_done), is_asked_for=True, max_age_ms=NEVER_MS, retry_backoff_ms=0
    )
    for topic in ("a", "b"):
        limits.want(topic)
    limits.ask(NEVER_MS / 2)
    asked.pop()(SimpleNamespace(results=[*useless, described("b", "7")]))
    assert (limits.max_message_bytes("a"), limits.max_message_bytes("b")) == (None, 7)
    limits.ask(NEVER_MS / 2)
    asked.pop()(SimpleNamespace(results=[described("a", "5")]))
    assert limits.max_message_bytes("a") == 5
