"""The tables of docs/reference/spark.md that list the columns of the reports of Spark jobs: they have each of them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from kafkafmt.export import TableReport
from kafkafmt.jobs.convert.tasks import ConvertReport
from kafkafmt.jobs.erase.segment import EraseReport
from kafkafmt.jobs.summary import TopicReport
from kafkafmt.jobs.verify import FileCheck
from kafkafmt.log.damage import Damage
from kafkafmt.spark.jobs.export import REPORT_COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"


def columns_of(sentence: str) -> set[str]:
    """Return the names in the first column of the table after a sentence of the page."""
    table = re.search(rf"^{re.escape(sentence)}[^|]*\n\n(?P<rows>(?:\|.*\n)+)", PAGE.read_text(), re.M)
    assert table is not None, sentence
    return {
        name for row in table["rows"].splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }


def names_of(report: type) -> set[str]:
    return {field.name for field in fields(report)}


@pytest.mark.parametrize(
    ("sentence", "report"),
    [
        ("`verify` returns", FileCheck),
        ("`convert` returns", ConvertReport),
        ("`summarize` returns", TopicReport),
        ("A damaged range is", Damage),
    ],
)
def test_table_of_reference_when_read_then_has_the_columns_of_the_report(sentence: str, report: type) -> None:
    assert columns_of(sentence) == names_of(report)


def test_table_of_reference_when_the_report_is_of_an_export_then_has_its_columns() -> None:
    assert columns_of("`export` returns") == set(REPORT_COLUMNS)


def test_reports_of_exports_when_read_by_position_then_are_as_in_the_first_release() -> None:
    """What later releases add comes last."""
    columns = ["topic", "location", "status", "records", "files", "size_in_bytes", "error"]
    assert REPORT_COLUMNS[: len(columns)] == columns
    report = TableReport("t", "/lake/t", 1, 2, 3, 4, {}, {}, None)
    assert (report.source_bytes, report.ranges, report.error, report.undecoded) == (4, {}, None, 0)


def test_table_of_reference_when_the_report_is_of_an_erasure_then_has_what_it_adds_to_a_conversion() -> None:
    converted = names_of(ConvertReport) - {"records_converted"}
    assert columns_of("`erase` returns") == names_of(EraseReport) - converted
    assert converted < names_of(EraseReport)
