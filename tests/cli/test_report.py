"""`kafkafmt inspect --html`: the file that it writes, and the options that it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cli.logs import flip, is_one_line, json_lines, run, segments, write_log
from docs.pages import assert_prints_what_it_says, section
from kafkafmt import Codec


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs" / "orders-0", codec=Codec.GZIP)


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL
    )
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_html_when_a_directory_is_given_then_writes_a_page_with_all_its_logs(log: Path) -> None:
    write_log(log.parent / "__consumer_offsets-3")
    page = log.parent.parent / "report.html"
    done = run("inspect", "--html", page, log.parent)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith(f"{page}: 2 partitions, ")
    data = data_of(page)
    assert [row["name"] for row in data["partitions"]] == ["__consumer_offsets-3", "orders-0"]
    assert data["partitions"][1]["uncompressed"] is None
    assert sum(data["partitions"][1]["bins"]["records"]) == 120
    assert [path.name for path in page.parent.iterdir() if path.is_file()] == ["report.html"]


def test_html_when_deep_then_has_the_sizes_without_compression(log: Path) -> None:
    page = log.parent.parent / "report.html"
    assert run("inspect", "--deep", "--html", page, log).exit_code == 0
    (row,) = data_of(page)["partitions"]
    assert row["uncompressed"][Codec.GZIP] > sum(row["bins"]["size"])


def test_html_when_there_is_damage_then_exits_with_1_and_says_so(log: Path) -> None:
    flip(segments(log)[0], 200)
    page = log.parent.parent / "report.html"
    done = run("inspect", "--html", page, log)
    assert done.exit_code == 1
    assert "damage: 1 problem in 1 partition: kafkafmt verify tells where" in done.stderr
    assert len(data_of(page)["partitions"][0]["problems"]) == 1


def test_html_when_the_file_exists_then_only_force_replaces_it(log: Path) -> None:
    page = log.parent.parent / "report.html"
    page.write_text("mine")
    refused = run("inspect", "--html", page, log)
    assert refused.exit_code != 0
    assert "already exists: --force replaces it" in refused.stderr
    assert page.read_text() == "mine"
    assert run("inspect", "--html", page, "--force", log).exit_code == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_html_when_the_folder_is_missing_then_is_refused_in_one_line(log: Path) -> None:
    done = run("inspect", "--html", log / "nowhere" / "report.html", log)
    assert done.exit_code == 2
    assert is_one_line(done.stderr, ["nowhere/report.html", "No such file"])


@pytest.mark.parametrize(
    "others",
    [
        ["--records"],
        ["--verify"],
        ["--summary"],
        ["--json"],
        ["--parquet", "rows.parquet"],
        ["--offsets", "1:2"],
        ["--limit", "3"],
        ["--from-segment-start"],
    ],
    ids=" ".join,
)
def test_html_when_another_option_has_no_effect_then_is_refused(log: Path, others: list[str]) -> None:
    done = run("inspect", "--html", log / "report.html", *others, log)
    assert done.exit_code == 2
    assert not (log / "report.html").exists()


def test_html_when_the_engine_is_spark_then_is_refused(log: Path) -> None:
    done = run("inspect", "--html", log / "report.html", "--engine", "spark", log)
    assert done.exit_code == 2


@pytest.mark.parametrize("release", ["3.9", "4.x"])
def test_html_when_groups_have_committed_then_has_their_offsets(tmp_path: Path, release: str) -> None:
    logs = Path(__file__).parents[1] / "data" / "coordinators" / release
    assert run("inspect", "--html", tmp_path / "report.html", logs).exit_code == 0
    found = {tuple(row) for row in data_of(tmp_path / "report.html")["positions"]}
    rows = json_lines(run("groups", "--json", logs).stdout)
    committed = [
        row for row in rows if row["committed_offset"] is not None and row["pending_producer_id"] is None
    ]
    names = ("group_id", "topic", "partition", "committed_offset")
    assert found == {tuple(row[name] for name in names) for row in committed} != set()


def test_section_of_the_docs_when_run_then_prints_what_it_says(tmp_path: Path) -> None:
    assert_prints_what_it_says(section("docs/forensics.md", "## A report in HTML"), tmp_path)
    assert (tmp_path / "report.html").exists()
