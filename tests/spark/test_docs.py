"""docs/spark.md, the tutorial and the README's task on Spark, run as written, and docs/producer.md's part on Spark.

Each block of Python prints what stands below it.

The folders that it names, `/backup` and what it writes, are in a temporary one; `/backup` has the committed logs. The
sections on brokers have two brokers, `east` and `west`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions

from broker.broker import Broker
from client.page import ON_SPARK, assert_prints_what_it_says
from client.page import PAGE as PRODUCER_PAGE
from data.real_logs import LOGS
from docs.pages import section
from kafkafmt.spark import verify
from mirror.parcels import PARTITIONS, send_parcels

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
TUTORIAL = PAGE.parent / "tutorials" / "spark.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL)
BROKERS = re.compile(r"^## Read and write topics of brokers\n.*?(?=^## (?!Mirror))", re.DOTALL | re.MULTILINE)
FOLDER = re.compile(r"""(?<=["'])/(?=[\w-]+["'])""")

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


def run(code: str, names: dict[str, Any], folder: Path) -> str:
    """What a block prints, without spaces at the ends of lines and of itself."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(FOLDER.sub(f"{folder}/", code), PAGE.name, "exec"), names)
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


@pytest.mark.full
@pytest.mark.usefixtures("spark")
def test_page_when_run_then_prints_what_it_says(tmp_path: Path) -> None:
    shutil.copytree(LOGS, tmp_path / "backup")
    names: dict[str, Any] = {}
    for block in BLOCK.finditer(BROKERS.sub("", PAGE.read_text())):
        assert run(block["code"], names, tmp_path) == (block["printed"] or "").strip(), block["code"]


@pytest.mark.usefixtures("spark")
def test_tutorial_when_run_then_prints_what_it_says(tmp_path: Path) -> None:
    shutil.copytree(LOGS, tmp_path / "backup")
    names: dict[str, Any] = {}
    for block in BLOCK.finditer(TUTORIAL.read_text()):
        assert run(block["code"], names, tmp_path) == (block["printed"] or "").strip(), block["code"]


def test_section_of_readme_when_run_then_prints_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(LOGS, tmp_path / "backup")
    for block in BLOCK.finditer(section("README.md", "### Read on Spark")):
        assert run(block["code"], {"spark": spark}, tmp_path) == (block["printed"] or "").strip(), block[
            "code"
        ]


def test_page_when_it_says_what_is_printed_then_has_blocks_for_all_of_it() -> None:
    page = PAGE.read_text()
    assert len(BLOCK.findall(page)) == page.count("```python") >= 7
    assert sum(bool(block["printed"]) for block in BLOCK.finditer(page)) == page.count("```text")


@pytest.mark.broker
def test_sections_on_brokers_when_run_then_prints_what_it_says(
    spark: SparkSession, broker_3: Broker, broker: Broker, tmp_path: Path
) -> None:
    for one in (broker_3, broker):
        one.create_topic("packages", PARTITIONS)
        one.create_topic("packages-copy", PARTITIONS)
    send_parcels(broker_3, "packages")
    section = BROKERS.search(PAGE.read_text())
    assert section is not None
    names: dict[str, Any] = {"spark": spark, "sf": functions, "verify": verify}
    for block in BLOCK.finditer(section[0]):
        code = block["code"].replace("east:9092", broker_3.bootstrap).replace("west:9092", broker.bootstrap)
        assert run(code, names, tmp_path) == (block["printed"] or "").strip(), block["code"]


@pytest.mark.broker
def test_page_of_the_producer_when_run_then_prints_what_it_says(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("orders-by-spark", 3)  # other tests have the topic that the page names
    section = ON_SPARK.search(PRODUCER_PAGE)
    assert section is not None
    assert_prints_what_it_says(
        section[0].replace('"orders"', '"orders-by-spark"'), {"spark": spark}, broker, LOGS
    )
