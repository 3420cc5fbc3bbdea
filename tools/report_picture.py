"""Make docs/_static/report.png: the report of some examples, in Chromium.

.venv/bin/python tools/report_picture.py
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from pathlib import Path

from kafkafmt import Codec, RecordBatchBuilder
from kafkafmt.cli.sources import find_sources
from kafkafmt.jobs.report import GroupPosition, PageHead, Totals, gather_partitions, page_chunks
from kafkafmt.log import PartitionLogWriter

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

START = 1_760_000_000_000
DAY = 86_400_000
SEGMENT_BYTES = 150_000
PRODUCERS = 5
TOPICS = {
    "orders-0": ([Codec.GZIP, Codec.ZSTD], 0.0, 600),
    "orders-1": ([Codec.GZIP, Codec.ZSTD], 0.0, 600),
    "payments-0": ([Codec.LZ4], 0.7, 500),
    "page-views-0": ([Codec.NONE, Codec.SNAPPY, Codec.LZ4], 0.0, 1500),
}
POSITIONS = [
    GroupPosition("billing", "orders", 0, 6500),
    GroupPosition("billing", "orders", 1, 11_000),
    GroupPosition("fraud-check", "payments", 0, 5200),
    GroupPosition("dashboards", "page-views", 0, 21_000),
]


def write_log(folder: Path, rng: random.Random) -> None:
    """Write a log of one day, with more records in the evening."""
    codecs, share, batches = TOPICS[folder.name]
    offset, time = 0, float(START)
    with PartitionLogWriter(folder, segment_bytes=SEGMENT_BYTES) as writer:
        for number in range(batches):
            load = 1.15 + math.sin((time - START) / DAY * 2 * math.pi - 1.5)
            time += rng.expovariate(1) * DAY / batches / load
            producer_id = rng.randrange(4000, 4000 + PRODUCERS) if rng.random() < share else -1
            is_transactional = producer_id >= 0
            state = {"producer_id": producer_id, "producer_epoch": 0, "is_transactional": is_transactional}
            builder = RecordBatchBuilder(
                codec=codecs[number * len(codecs) // batches],
                base_offset=offset,
                **({**state, "base_sequence": 0} if is_transactional else {}),
            )
            for _ in range(rng.randrange(5, 40)):
                builder.append(
                    int(time), b"key-%d" % rng.randrange(500), rng.randbytes(40) * rng.randrange(1, 5)
                )
                offset += 1
            writer.append(builder.build())
            if is_transactional and rng.random() < 0.9:
                marker = RecordBatchBuilder(base_offset=offset, is_control=True, **state)
                marker.append_end_transaction_marker(int(time), commit=rng.random() < 0.7)
                writer.append(marker.build())
                offset += 1


def damage(folder: Path) -> None:
    """Overwrite some bytes of the third segment."""
    path = sorted(folder.glob("*.log"))[2]
    with path.open("r+b") as file:
        file.seek(SEGMENT_BYTES // 2)
        file.write(b"damaged")


def main() -> None:
    """Write the picture."""
    from endpoints import browser

    rng = random.Random(4)
    picture = ROOT / "docs" / "_static" / "report.png"
    with tempfile.TemporaryDirectory() as name, browser.driven() as page:
        folder = Path(name)
        for log in TOPICS:
            write_log(folder / log, rng)
        damage(folder / "orders-1")
        sources = find_sources([name])
        head = PageHead("/var/lib/kafka", START + 2 * DAY, "0.1.0", len(TOPICS), True)
        chunks = page_chunks(head, gather_partitions(sources, deep=True), POSITIONS, Totals())
        report = folder / "report.html"
        report.write_bytes(b"".join(chunks))
        page.open(report.as_uri(), 1400, 1480)
        page.take_picture(picture)
    print(f"{picture}: {picture.stat().st_size} bytes")


if __name__ == "__main__":
    main()
