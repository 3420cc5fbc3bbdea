"""Select the consumer groups whose offsets a mirror syncs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.mirror.addresses import split_names
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.group_name import is_derived_group

if TYPE_CHECKING:
    from typing_extensions import Self

# A text with other characters may be a regular expression.
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class GroupSelection:
    """Groups by name, or by regular expressions that match whole names. Groups of mirrors are never selected."""

    names: tuple[str, ...] = (".*",)

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse names and regular expressions with commas between them. Raises MirrorError."""
        try:
            names = split_names(text)
        except ValueError as error:
            raise MirrorError(f"--groups: {error}") from None
        if not names:
            raise MirrorError("--groups: expected a name or a regular expression, found nothing")
        return cls(tuple(names))

    def missing(self, groups: Iterable[str]) -> list[str]:
        """Return the names that no group has. A regular expression may match none.

        >>> GroupSelection.parsed("readers,writers,app-.*").missing(["readers"])
        ['writers']
        """
        there = {*groups}
        return [name for name in self.names if _NAME.fullmatch(name) and name not in there]

    def matches(self, group: str) -> bool:
        """Return whether a group is selected."""
        return not is_derived_group(group) and any(
            group == name or re.fullmatch(name, group) is not None for name in self.names
        )
