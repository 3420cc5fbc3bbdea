"""A log directory on S3, a server on loopback, is served read only, to clients of any age."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest

from endpoints.endpoint_here import Here, serving
from endpoints.fetched import NEW, OLD, partitions, read
from endpoints.requests import Wanted, fetch
from file_systems import BUCKET
from kafkafmt.storage import storage_path
from log.samples import batches, put_segment

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

fs = pytest.importorskip("pyarrow.fs")


@pytest.mark.parametrize("version", [OLD, NEW])
def test_fetch_when_the_log_is_on_s3_then_has_its_records(
    s3: FileSystem, s3_options: Mapping[str, str], tmp_path: Path, version: int
) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 10, 5))
    put_segment(tmp_path / "t-0", 10, batches(10, 20, 5))
    fs.copy_files(str(tmp_path), f"{BUCKET}/served", destination_filesystem=s3)
    key, secret = (quote(s3_options[name], safe="") for name in ("access_key", "secret_key"))
    query = urlencode({one: s3_options[one] for one in ("endpoint_override", "scheme", "region")})
    directory: Any = storage_path(f"s3://{key}:{secret}@{BUCKET}/served?{query}")

    async def ask(here: Here, offset: int) -> list[int]:
        with await here.client() as client:
            answer = partitions(await client.ask(fetch(Wanted("t", offset=offset)), version))
            assert answer["t", 0].high_watermark == 20
            return read(answer["t", 0], offset)

    async def main() -> None:
        async with serving(directory) as here:
            for offset in (0, 12):  # a converted record that the promised size cuts off is fetched again
                found = await ask(here, offset)
                assert len(found) >= 5
                assert found == list(range(offset, offset + len(found)))

    asyncio.run(main())
