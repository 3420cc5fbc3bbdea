"""A backup is served in place: consumers read the generation's records, and see its configuration and epochs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from backup.stored import EMPTY, SEGMENT_RECORDS, TOPIC, StoredBackup, write_key_ring
from endpoints.endpoint_here import Client, serving
from endpoints.fetched import NEW, partitions, read
from endpoints.requests import Wanted, fetch
from kafkafmt.storage import storage_path


def test_fetch_when_the_log_is_a_backup_then_has_the_records_of_its_last_generation(tmp_path: Path) -> None:
    ring = write_key_ring(tmp_path)
    backup = StoredBackup(tmp_path / "backup", tmp_path, ring, compresses=True)
    backup.grow()
    backup.grow()
    directory: Any = storage_path(f"backup+{backup.target.as_uri()}?key_ring={ring}")  # type: ignore[union-attr]

    async def ask(client: Client) -> None:
        found: list[int] = []
        while len(found) < 2 * SEGMENT_RECORDS:
            asked = fetch(Wanted(TOPIC, offset=len(found)))
            answer = partitions(await client.ask(asked, NEW))[TOPIC, 0]
            assert answer.high_watermark == 2 * SEGMENT_RECORDS
            found += read(answer, len(found))
        assert found == [*range(2 * SEGMENT_RECORDS)]
        empty = partitions(await client.ask(fetch(Wanted(EMPTY)), NEW))[EMPTY, 0]
        assert (empty.error_code, empty.high_watermark) == (0, 0)

    async def main() -> None:
        async with serving(directory) as here:
            with await here.client() as client:
                await ask(client)

    asyncio.run(main())
