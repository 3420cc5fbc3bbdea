"""Select the consumer groups whose offsets a mirror syncs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.mirror.addresses import split_names
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.group_name import is_derived_group

if TYPE_CHECKING:
    from typing_extensions import Self


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

    def matches(self, group: str) -> bool:
        """Return whether a group is selected."""
        return not is_derived_group(group) and any(
            group == name or re.fullmatch(name, group) is not None for name in self.names
        )
