"""Sizes in bytes as people write them: `65536`, `512m`, `4g`, `1.5GiB`.

K, M, G and T are powers of 1024, in any case, whether `B` or `iB` follows or nothing, as in Spark and the JVM.
"""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*(?:([KMGT])(?:I(?=B))?)?B?", re.ASCII | re.IGNORECASE)
_MOST = 2**63 - 1


def parse_size(value: int | str, *, least: int = 1) -> int:
    """The bytes that a text says; fractions of a byte are left out. A number is bytes already.

    Raises ValueError, in one line, for what is no size and for one below `least`; TypeError for other types.

    >>> parse_size("512m"), parse_size("1.5GiB"), parse_size("65536"), parse_size(4096)
    (536870912, 1610612736, 65536, 4096)
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"a size: expected a number of bytes or a text as 512m, found {value!r}")
    size: int | None = None
    if isinstance(value, int):
        size = value
    elif match := _SIZE.fullmatch(value.strip()):
        size = int(Fraction(match[1]) * _UNITS[(match[2] or "").upper()])
    if size is None or not least <= size <= _MOST:
        amount = "1 byte" if least == 1 else f"{least} bytes"
        raise ValueError(
            f"expected a size of {amount} or more, as 65536, 512m, 4g or 1.5GiB, found {value!r}"
        )
    return size


def parse_named_size(name: str, value: int | str, *, least: int = 1) -> int:
    """`parse_size` of an argument, whose name stands in front of what ValueError and TypeError say.

    >>> parse_named_size("buffer_bytes", "64k")
    65536
    """
    try:
        return parse_size(value, least=least)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from None


def size_text(size: int) -> str:
    """A size as `parse_size` reads it, `512K` or `64M`: in the largest unit that it is a whole number of.

    >>> size_text(64 * 1024 * 1024), size_text(1000)
    ('64M', '1000')
    """
    if size == 0:
        return "0"
    unit = max((unit for unit in _UNITS if size % _UNITS[unit] == 0), key=_UNITS.__getitem__)
    return f"{size // _UNITS[unit]}{unit}"


def at_least_text(size: int) -> str:
    """A size, rounded up to whole MiB, or to KiB below 10 MiB, so that what it says is enough.

    >>> at_least_text(20_000_000), at_least_text(1000)
    ('20M', '1K')
    """
    unit = _UNITS["M"] if size >= 10 * _UNITS["M"] else _UNITS["K"]
    return size_text(-(-size // unit) * unit)
