"""`make bench-report`: bench/RESULTS.md, its charts, and tables in docs/, from the JSON in bench/results.

A page in docs/ has each table between `<!-- results: FILE TABLE -->` and `<!-- end of results -->`.

python -m bench.report            writes them
python -m bench.report --check    exits with status 1 if a page is missing or differs in text, or a chart is missing
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.charts import Bars, Chart, Lines, Panel, Panels, Relative
from bench.results import RESULTS

PAGE = ROOT / "bench" / "RESULTS.md"
CHARTS = ROOT / "bench" / "charts"
_EMBEDDED = re.compile(
    r"<!-- results: (?P<file>\w+) (?P<table>\w+) -->\n.*?<!-- end of results -->\n", re.DOTALL
)
_MEMORY_LIMIT_MIB, _FETCH_LIMIT_MIB, _PROMISED_PERCENT = 256, 200e6 / 2**20, 10
_CHUNKS = Lines("chunk size in KiB", "throughput, of that of 128 KiB", is_log=True)
_OVER_TIME = Panels(
    "minutes",
    (
        Panel("memory, MiB", ("memory",)),
        Panel("descriptors", ("descriptors",)),
        Panel("threads", ("threads",)),
        Panel("latency, ms", ("latency p50", "latency p99")),
    ),
)


@dataclass(frozen=True)
class Section:
    """A benchmark. name: of its JSON file; text: the comparison in a sentence; charts: by the name of the table."""

    name: str
    title: str
    command: str
    text: str
    charts: Mapping[str, Chart] = field(default_factory=dict)


SECTIONS = (
    Section(
        "bench",
        "Kernels, producer path, consumers and splitting",
        "make bench",
        "Compares the kernels with Kafka's own Java, with other Python clients, and with the floor: the copy, the"
        " codec or the CRC. Compares producers and consumers of a real broker with kafka-python and librdkafka.",
        {
            "kernels": Relative(
                "ours",
                {"java": "Java", "aiokafka": "aiokafka", "kafka-python": "kafka-python", "floor": "floor"},
            ),
            "producer": Relative(
                "ours M rec/s", {"kafka-python M rec/s": "kafka-python", "librdkafka M rec/s": "librdkafka"}
            ),
            "consumer": Relative(
                "ours M rec/s",
                {
                    "confluent-kafka M rec/s": "confluent-kafka",
                    "kafka-python M rec/s": "kafka-python",
                    "floor M rec/s": "floor",
                },
            ),
            "splitting_all": Bars(
                "most split",
                "ours",
                _PROMISED_PERCENT,
                "KIP-126: 10 %",
                "% of the batches split, in the worst mix",
            ),
        },
    ),
    Section(
        "spark",
        "Spark",
        "make bench-spark",
        "Compares the data source with Spark's own Kafka source, and with kafka-python's decoder in a UDF. The"
        " ceiling is a source that returns one prepared batch again and again.",
        {
            "compared": Relative(
                "ours",
                {
                    "ceiling": "ceiling",
                    "Spark's Kafka source": "Spark's Kafka source",
                    "decoder in a UDF": "decoder in a UDF",
                },
            )
        },
    ),
    Section(
        "tiered",
        "Tiered storage on Spark",
        "make bench-tiered",
        "Compares reads of tiered storage on Spark with reads of the same bytes as plain segments, for each transform.",
    ),
    Section(
        "serve",
        "Endpoint",
        "make bench-serve",
        "Compares `kafkafmt serve` with a Kafka 3.9.1 broker over the same segments, with the same consumers.",
        {"rates": Relative("ours", {"Kafka 3.9.1": "Kafka 3.9.1"})},
    ),
    Section(
        "gateway",
        "Gateway",
        "make bench-gateway",
        "Compares `kafkafmt gateway` with direct connections to the broker of Kafka 4, with kafka-proxy, and with a"
        " broker of Kafka 3.9 that converts itself.",
    ),
    Section(
        "mirror",
        "Mirror",
        "make bench-mirror",
        "Compares `kafkafmt mirror` with `--use-raw-bytes` (raw), with `--deep`, with a loop of confluent-kafka's"
        " consumer and producer, and with the floor: a program that only receives and sends the bytes.",
        {
            "processors": Relative(
                "adaptive",
                {
                    "raw": "--use-raw-bytes",
                    "deep": "--deep",
                    "confluent-kafka": "confluent-kafka",
                    "floor": "floor",
                },
                less_is_better=True,
                older="raw",
            )
        },
    ),
    Section(
        "backup",
        "Backup",
        "make bench-backup",
        "Compares `kafkafmt backup` of a broker into a folder with the raw mirror of the same topic into a folder.",
    ),
    Section(
        "memory",
        "Memory",
        "make bench-memory",
        "Compares one budget for the process with limits for each partition, within 256 MiB. Without a plan of"
        " the budget, the process needs more memory, or fails.",
        {
            "within": Bars(
                "resident", "plan", _MEMORY_LIMIT_MIB, "256 MiB", "MiB resident at the peak", "outcome"
            ),
            "costs": Relative("ours", {"cachetools": "cachetools"}, less_is_better=True),
        },
    ),
    Section(
        "forensics",
        "Internal topics",
        "make bench-forensics",
        "Compares `kafkafmt groups` and `kafkafmt inspect` of a `__consumer_offsets` log with kafka-dump-log.",
    ),
    Section(
        "endurance",
        "Two hours under load",
        "make bench-endurance",
        "Runs `kafkafmt serve`, `gateway` and `mirror` for two hours under a steady load. A series is flat if the"
        " median of its last quarter is not above that of its first quarter by more than the tolerance.",
        dict.fromkeys(("serve", "serve_produce", "gateway", "mirror"), _OVER_TIME),
    ),
    Section(
        "chunk_size",
        "Chunk sizes",
        "python -m bench.experiments.chunk_size",
        "KIP-283's experiment: throughput by chunk size, and the figures of the KIP.",
        {"chunk_size": _CHUNKS},
    ),
    Section(
        "serve_throughput",
        "Chunk sizes, from the endpoint",
        "python -m bench.experiments.serve_throughput",
        "The same experiment with `kafkafmt serve`.",
        {"chunk_size": _CHUNKS},
    ),
    Section(
        "exact_size",
        "Sizes that are promised",
        "python -m bench.experiments.exact_size",
        "KIP-283's estimate of a response's size, and the exact size: what it saves, and what it costs.",
    ),
    Section(
        "fetch_memory",
        "Memory of one fetch",
        "python -m bench.experiments.fetch_memory",
        "KIP-283's experiment: eager conversion runs out of 200 MB, lazy conversion does not.",
        {
            "fetch_memory": Lines(
                "seconds", "MiB resident, above the start", bound=_FETCH_LIMIT_MIB, bound_name="200 MB"
            )
        },
    ),
    Section(
        "lazy_memory",
        "Memory by size of the segment",
        "python -m bench.experiments.lazy_memory",
        "The memory of a lazy conversion does not grow with the segment.",
    ),
    Section(
        "serve_memory",
        "Memory of the endpoint",
        "python -m bench.experiments.serve_memory",
        "The same experiment with `kafkafmt serve` and a consumer.",
    ),
    Section(
        "serve_connections",
        "A thousand consumers",
        "python -m bench.experiments.serve_connections",
        "A thousand consumers of old formats fetch at the same time, within 200 MB.",
    ),
    Section(
        "serve_hostile",
        "Hostile clients",
        "python -m bench.experiments.serve_hostile",
        "Measures how long one request occupies the event loop, and how much memory a hundred of them take.",
    ),
    Section(
        "spark_memory",
        "Memory of a Spark task",
        "python -m bench.experiments.spark_memory",
        "One task reads 4 GiB with 1 GiB of virtual memory.",
    ),
)


def files() -> Iterator[tuple[str, str]]:
    """Yield the page and its charts: paths below bench/, and texts."""
    lines = [
        "# Benchmark results",
        "",
        "`make bench-report` makes this page and its charts from the JSON of the benchmarks in `bench/results`.",
        "[How benchmarks are measured](README.md) explains each row. Compare a figure only with others of one run.",
        "",
        "In the charts 1x is kafkafmt, and `✗` marks a missed target. In the tables, the factor in brackets says how",
        "many times as fast kafkafmt is.",
        "",
    ]
    missing = []
    for section in SECTIONS:
        path = RESULTS / f"{section.name}.json"
        if not path.is_file():
            missing.append(section)
            continue
        result = json.loads(path.read_text())
        tables = {table["name"]: table for table in result["tables"]}
        charts = {
            f"{section.name}-{name}": (name, chart)
            for name, chart in section.charts.items()
            if name in tables
        }
        yield from (
            (f"charts/{file}.svg", chart.draw(tables[name])) for file, (name, chart) in charts.items()
        )
        lines += _section(section, result, {name: file for file, (name, _) in charts.items()})
    if missing:
        lines += ["## Not measured yet", "", "| experiment | command |", "|---|---|"]
        lines += [f"| {section.title}: {section.text} | `{section.command}` |" for section in missing]
        lines.append("")
    yield "RESULTS.md", "\n".join(lines)


def _section(section: Section, result: Mapping[str, Any], charts: Mapping[str, str]) -> Iterator[str]:
    yield from (f"## {section.title}", "", section.text, "")
    commit = f", commit {result['commit']}" if result["commit"] else ""
    yield f"`{result['command']}`, {result['date']}, {result['machine']}, kafkafmt {result['version']}{commit}."
    yield ""
    for table in result["tables"]:
        if table["rows"]:
            yield from (f"### {table['title']}", "")
            if table["name"] in charts:
                yield from (f"![{table['title']}](charts/{charts[table['name']]}.svg)", "")
            yield from _markdown(table)
            yield ""


def _markdown(table: Mapping[str, Any]) -> Iterator[str]:
    yield _line(table["columns"])
    yield "|" + "---|" * len(table["columns"])
    for row in table["rows"]:
        name, *cells = (cell["text"] for cell in row)
        yield _line([f"… {name.strip()}" if name.startswith(" ") else name, *cells])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def pages(docs: Path = ROOT / "docs") -> Iterator[tuple[Path, str]]:
    """Yield the pages below `docs` that have tables of results, with the texts that they should have."""
    for path in sorted(docs.rglob("*.md")):
        text = path.read_text()
        if _EMBEDDED.search(text):
            yield path, _EMBEDDED.sub(_embedded, text)


def _embedded(place: re.Match[str]) -> str:
    result = json.loads((RESULTS / f"{place['file']}.json").read_text())
    (table,) = (table for table in result["tables"] if table["name"] == place["table"])
    rows = "\n".join(_markdown(table))
    return f"<!-- results: {place['file']} {place['table']} -->\n{rows}\n<!-- end of results -->\n"


def main(*, check: bool) -> None:
    made = dict(files())
    if check:
        for page, text in pages():
            if page.read_text() != text:
                sys.exit(f"{page.relative_to(ROOT)}: expected the tables that `make bench-report` writes")
        missing = [path for path in made if not (PAGE.parent / path).is_file()]
        if missing or PAGE.read_text() != made["RESULTS.md"]:
            sys.exit("bench/RESULTS.md: expected the output of `make bench-report`")
        return
    CHARTS.mkdir(exist_ok=True)
    for old in set(CHARTS.iterdir()) - {PAGE.parent / path for path in made}:
        old.unlink()
    for page, text in pages():
        page.write_text(text)
    for path, text in made.items():
        (PAGE.parent / path).write_text(text)


if __name__ == "__main__":
    main(check=sys.argv[1:] == ["--check"])
