"""Text that others chose, for terminals and logs."""

from __future__ import annotations


def visible(text: str) -> str:
    """Return a text with escapes for characters that are not printable.

    Clients of a broker choose names, and a terminal executes the control sequences in them.

    >>> print(visible("orders \x1b[2J"))
    orders \\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
