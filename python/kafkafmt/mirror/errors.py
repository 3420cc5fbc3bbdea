"""What ends a mirror."""

from __future__ import annotations


class MirrorError(Exception):
    """Why a mirror cannot begin, or go on, in one line."""
