"""Sizes in bytes as text: `65536`, `512m`, `4g`, `1.5GiB`.

K, M, G and T are powers of 1024, as in Spark and the JVM, in upper or lower case. `B` or `iB` may follow.
"""

from __future__ import annotations

import re
from fractions import Fraction

KIB, MIB, GIB = 1024, 1024**2, 1024**3

_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024**4}
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*(?:([KMGT])(?:I(?=B))?)?B?", re.ASCII | re.IGNORECASE)
_MOST = 2**63 - 1


def parse_size(value: int | str, *, least: int = 1, most: int = _MOST) -> int:
    """Return a size in bytes, from a text or from a number of bytes. Rounds down to a whole byte.

    Raises ValueError, in one line, if the text is not a size, or the size is below `least` or above `most`. Raises
    TypeError for other types.

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
    if size is None or not least <= size <= most:
        amount = "1 byte" if least == 1 else f"{least} bytes"
        is_too_large = size is not None and size > most
        end = f"to {size_text(most)}" if is_too_large or most < _MOST else "or more"
        raise ValueError(f"expected a size of {amount} {end}, as 65536, 512m, 4g or 1.5GiB, found {value!r}")
    return size


def parse_named_size(name: str, value: int | str, *, least: int = 1) -> int:
    """Parse a size as `parse_size`. Messages of ValueError and TypeError begin with `name`, the name of the argument.

    >>> parse_named_size("buffer_bytes", "64k")
    65536
    """
    try:
        return parse_size(value, least=least)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from None


def size_text(size: int) -> str:
    """Return the text of a size, as `512K` or `64M`, in the largest unit that gives a whole number.

    >>> size_text(64 * 1024 * 1024), size_text(1000)
    ('64M', '1000')
    """
    if size == 0:
        return "0"
    unit = max((unit for unit in _UNITS if size % _UNITS[unit] == 0), key=_UNITS.__getitem__)
    return f"{size // _UNITS[unit]}{unit}"


def at_least_text(size: int) -> str:
    """Return the text of a size, rounded up to whole MiB, or to whole KiB below 10 MiB.

    >>> at_least_text(20_000_000), at_least_text(1000)
    ('20M', '1K')
    """
    unit = _UNITS["M"] if size >= 10 * _UNITS["M"] else _UNITS["K"]
    return size_text(-(-size // unit) * unit)
