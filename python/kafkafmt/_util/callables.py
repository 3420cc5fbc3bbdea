"""Callables that users name in options."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def load_callable(name: str) -> Callable[..., Any]:
    """Import the callable `MODULE:CALLABLE`, looked up in the working directory first.

    Raises ValueError, in one line, if the name has another form, nothing of that name is found, or it is not callable.
    """
    module, _, attribute = name.partition(":")
    if not module or module.startswith(".") or not attribute:  # no package for a relative name is known
        raise ValueError(f"{name!r}: expected MODULE:CALLABLE")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r}: {error}") from None
    if not callable(found):
        raise ValueError(f"{name!r}: expected a callable, found {type(found).__name__}")
    made: Callable[..., Any] = found
    return made
