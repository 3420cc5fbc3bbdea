"""The options that select topics and a range of offsets, which both sources share."""

from __future__ import annotations

from collections.abc import Mapping

from kafkafmt._util.options import Options
from kafkafmt.scanning.selection import EARLIEST, LATEST, Bound, TopicSelection
from kafkafmt.spark.values import MAX_LONG, json_value
from kafkafmt.types import TopicPartition

_OPPOSITES = {EARLIEST: LATEST, LATEST: EARLIEST}
_OPPOSITE_WORDS = {"earliest": "latest", "latest": "earliest"}


def parse_topic_selection(options: Options) -> TopicSelection:
    """Return the topics that the options `subscribe`, `subscribePattern` and, if it exists, `topics` select."""
    options.ensure_one_of("topics", "subscribe", "subscribePattern")
    return TopicSelection(
        names=options["subscribe"] or (),
        globs=options.get("topics", ()),
        pattern=options["subscribePattern"],
    )


def parse_starting(options: Options, *, can_be_latest: bool) -> Bound:
    """Return the start by startingOffsets and startingTimestamp. can_be_latest: accept latest. Raises ValueError."""
    if can_be_latest and options["startingOffsets"].lower() == "latest":
        options.ensure_one_of("startingOffsets", "startingTimestamp")
        return Bound(is_latest=True)
    other = LATEST if can_be_latest else None
    return parse_bound(options, "starting", own="earliest", own_number=EARLIEST, other_number=other)


def parse_bound(
    options: Options, prefix: str, *, own: str, own_number: int, other_number: int | None = None
) -> Bound:
    """Return the bound by the options `<prefix>Offsets` and `<prefix>Timestamp`. Raises ValueError.

    own, own_number: the word and the number for the default bound, the log's start or end. other_number: the number for
    the opposite end of the log, if it is accepted.
    """
    options.ensure_one_of(f"{prefix}Offsets", f"{prefix}Timestamp")

    def offsets(value: str) -> Mapping[TopicPartition, int | None] | None:
        if other_number is None and value.lower() == _OPPOSITE_WORDS[own]:
            raise ValueError(_no_opposite(own, own_number))
        return None if value.lower() == own else _parse_offsets(value, own, own_number, other_number)

    return Bound(
        options.parse(f"{prefix}Offsets", offsets),
        options[f"{prefix}Timestamp"],
    )


def _no_opposite(own: str, own_number: int) -> str:
    """Return why the opposite end of the log is refused."""
    word, number = _OPPOSITE_WORDS[own], _OPPOSITES[own_number]
    way = "only a stream begins there" if number == LATEST else "only startingOffsets takes it"
    return f"expected {own} or offsets, and not {word} ({number}): {way}"


def _parse_offsets(
    value: str, own: str, own_number: int, other_number: int | None
) -> dict[TopicPartition, int | None]:
    """Parse Spark's JSON, {"topic": {"0": 23, "1": -2}}: -2 is earliest, -1 latest. Raises ValueError."""
    expected = f'expected {own} or JSON as {{"topic": {{"0": 23, "1": {own_number}}}}}'
    given = json_value(value)
    found: dict[TopicPartition, int | None] = {}
    for topic, partitions in given.items() if isinstance(given, dict) else [("", None)]:
        for partition, offset in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            is_offset = type(offset) is int and (
                0 <= offset <= MAX_LONG or offset in (own_number, other_number)
            )
            if other_number is None and offset == _OPPOSITES[own_number]:
                raise ValueError(_no_opposite(own, own_number))
            if not partition.isdecimal() or not is_offset:
                raise ValueError(expected)
            found[TopicPartition(topic, int(partition))] = None if offset == own_number else offset
    return found
