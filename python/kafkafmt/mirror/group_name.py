"""Derive the default consumer group of a mirror: one per pair of source and target, the same in every run."""

from __future__ import annotations

import hashlib
import re
import socket
from pathlib import Path

_PREFIX = "kafkafmt-mirror"
_DIGEST_CHARACTERS = 16


def derived_group(source: str, target: str | Path) -> str:
    """Return the name of the group.

    Args:
        source: The cluster id of the source.
        target: The cluster id of the target; or a folder, which stands for its absolute path on this host.
    """
    if isinstance(target, Path):
        target = f"{socket.gethostname()}:{target.resolve()}"
    digest = hashlib.sha256(f"{source}\0{target}".encode()).hexdigest()
    return f"{_PREFIX}-{digest[:_DIGEST_CHARACTERS]}"


def is_derived_group(group: str) -> bool:
    """Return whether a mirror derived the name of the group.

    >>> is_derived_group(derived_group("east", "west")), is_derived_group("kafkafmt-mirror-audit")
    (True, False)
    """
    return re.fullmatch(rf"{_PREFIX}-[0-9a-f]{{{_DIGEST_CHARACTERS}}}", group) is not None
