from __future__ import annotations

from collections.abc import Iterator

import pytest

from decode.stand_in import Registry, running_registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running
