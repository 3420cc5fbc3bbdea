from __future__ import annotations

from collections.abc import Iterator

import pytest

from file_systems import s3_server


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """An S3 server on loopback, one for a worker: the options that reach it."""
    with s3_server() as options:
        yield options
