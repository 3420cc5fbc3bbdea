"""What the tests of one group share."""

from __future__ import annotations

import pytest

from serve.groups.scene import Scene


@pytest.fixture
def scene() -> Scene:
    """A group without members."""
    return Scene()
