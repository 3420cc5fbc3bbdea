"""The aliases of a mirror's clusters, under which MirrorMaker 2 knows them in heartbeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.log.topic_configs import is_topic_name
from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from typing_extensions import Self

HEARTBEATS_TOPIC = "heartbeats"


@dataclass(frozen=True)
class Aliases:
    """The names of the two clusters in heartbeats."""

    source: str
    target: str

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse `SOURCE,TARGET`. Raises MirrorError. An alias is legal if it may begin the name of a topic."""
        source, _, target = text.partition(",")
        if source == target or not all(
            is_topic_name(f"{one}.{HEARTBEATS_TOPIC}") and one for one in (source, target)
        ):
            raise MirrorError(
                f"--heartbeats: expected SOURCE,TARGET, two different aliases of clusters, found {text!r}"
            )
        return cls(source, target)

    @property
    def remote_topic(self) -> str:
        """The name that MirrorMaker 2 gives the source's heartbeats at the target, with any of its policies."""
        return f"{self.source}.{HEARTBEATS_TOPIC}"
