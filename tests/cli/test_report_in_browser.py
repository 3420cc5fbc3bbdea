"""The report in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cli.logs import flip, run, segments, write_copies, write_log
from endpoints import browser
from kafkafmt import Codec
from kafkafmt.jobs.report import GroupPosition, PageHead, PartitionReport, Totals, page_chunks
from kafkafmt.jobs.report.bins import CODECS, FORMATS, STATES, Bins
from kafkafmt.jobs.report.gather import Problem, SegmentReport

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(browser.installed() is None, reason="needs Chromium: tools/system.sh chromium"),
]

WIDTH, HEIGHT = 1300, 900
ATTACK = (
    "</script><img src=x onerror=\"document.title='owned'\"><svg onload=\"document.title='owned'\">\u202e"
)
ROWS = "[...document.querySelectorAll('#partitions tbody tr')].map(row => row.cells[0].textContent)"
LEGEND = "[...document.querySelectorAll('#legend li')].map(item => item.textContent)"
TIP = "document.getElementById('tip').hidden ? null : document.getElementById('tip').textContent"


@pytest.fixture(scope="module")
def page() -> Iterator[browser.Page]:
    with browser.driven() as found:
        yield found


@pytest.fixture
def report(tmp_path: Path) -> str:
    """The address of a report of three partitions, of which one is damaged."""
    logs = tmp_path / "logs"
    write_log(logs / "orders-0", codec=Codec.GZIP)
    write_log(logs / "orders-1", batches=40, codec=Codec.ZSTD)
    write_log(logs / "__consumer_offsets-0", batches=3)
    flip(segments(logs / "orders-1")[1], 300)
    assert run("inspect", "--html", tmp_path / "report.html", logs).exit_code == 1
    return (tmp_path / "report.html").as_uri()


def centre_of(page: browser.Page, selector: str) -> tuple[float, float]:
    """Scroll an element into view, and return its centre."""
    box = page.run(
        f"(() => {{ const one = document.querySelector({selector!r}); one.scrollIntoView({{block: 'center'}});"
        "const {left, top, width, height} = one.getBoundingClientRect(); return [left, top, width, height] })()"
    )
    page.painted()
    return box[0] + box[2] / 2, box[1] + box[3] / 2


def colours_in(page: browser.Page, selector: str) -> int:
    """The number of colours in a canvas."""
    count: int = page.run(
        f"(() => {{ const one = document.querySelector({selector!r});"
        "const {data} = one.getContext('2d').getImageData(0, 0, one.width, one.height);"
        "return new Set(new Uint32Array(data.buffer)).size })()"
    )
    return count


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_when_opened_then_is_drawn_without_errors_and_without_the_network(
    page: browser.Page, report: str, scheme: str
) -> None:
    page.console.clear()
    page.requests.clear()
    page.open(report, WIDTH, HEIGHT, scheme=scheme)
    page.painted()
    assert page.run("document.documentElement.dataset.theme") == scheme
    assert page.run(ROWS) == ["__consumer_offsets-0", "orders-0", "orders-1"]
    assert colours_in(page, "#arrival") > 3
    centre_of(page, "#partition-1 canvas")
    assert colours_in(page, "#partition-1 canvas") > 3
    assert page.console == []
    assert page.requests == [report]


def test_table_when_sorted_and_filtered_then_shows_the_rows_and_their_timelines(
    page: browser.Page, report: str
) -> None:
    page.open(report, WIDTH, HEIGHT)
    page.run(
        "[...document.querySelectorAll('#partitions th button')].find(one => one.textContent === 'Batches').click()"
    )
    assert page.run(ROWS) == ["orders-1", "orders-0", "__consumer_offsets-0"]
    page.run("document.getElementById('internal').click()")
    assert page.run(ROWS) == ["orders-1", "orders-0"]
    page.run("document.getElementById('only-problems').click()")
    assert page.run(ROWS) == ["orders-1"]
    assert page.run("[...document.querySelectorAll('.timeline h3')].map(one => one.textContent)") == [
        "orders-1"
    ]
    page.run(
        "(one => { one.value = 'nothing'; one.dispatchEvent(new Event('input')) })(document.getElementById('filter'))"
    )
    assert page.run("document.querySelector('#partitions').textContent") == "No partition matches."


def test_timeline_when_pointed_at_then_a_tooltip_tells_of_the_batch(page: browser.Page, report: str) -> None:
    page.open(report, WIDTH, HEIGHT)
    x, y = centre_of(page, "#partition-1 canvas")
    page.move(x, y - 20)
    text = page.run(TIP)
    assert text.startswith("1 batch")
    assert "codecgzip" in text
    assert "producernone" in text
    page.move(5, 5)
    assert page.run(TIP) is None


def test_timeline_when_keys_are_pressed_then_moves_from_batch_to_batch_and_zooms(
    page: browser.Page, report: str
) -> None:
    page.open(report, WIDTH, HEIGHT)
    centre_of(page, "#partition-1 canvas")
    page.run("document.querySelector('#partition-1 canvas').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert "offsets10 \u2013 19" in page.run(TIP)
    domain = "document.querySelector('#partition-1 canvas').timeline.domain"
    assert page.run(domain) == [0, 120]
    page.press("+")
    assert page.run(domain) == [30, 90]
    page.press("0")
    assert page.run(domain) == [0, 120]


def test_view_when_switched_then_axis_and_legend_change(page: browser.Page, report: str) -> None:
    page.open(report, WIDTH, HEIGHT)
    centre_of(page, "#partition-1 canvas")
    assert page.run(LEGEND) == ["none", "gzip", "zstd", "damaged range"]
    before = page.run("document.querySelector('#partition-1 canvas').toDataURL()")
    page.run("document.querySelector('#colour button[value=damage]').click()")
    assert page.run(LEGEND) == ["sound", "damaged range"]
    page.run("document.querySelector('#axis button[value=time]').click()")
    page.painted()
    assert page.run("document.querySelector('#partition-1 canvas').toDataURL()") != before
    assert page.run("document.querySelector('#partition-1 canvas').timeline.domain[0]") == 1_700_000_000_000


def test_report_when_there_is_no_batch_then_says_so(page: browser.Page, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "empty-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.log").touch()
    assert run("inspect", "--html", tmp_path / "report.html", folder).exit_code == 0
    page.console.clear()
    page.open((tmp_path / "report.html").as_uri(), WIDTH, HEIGHT)
    centre_of(page, "#partition-0 canvas")
    assert page.run("document.querySelector('#partition-0 header').textContent").startswith(
        "empty-0no batches"
    )
    assert page.run("document.querySelector('#problems').textContent") == "No damage was found."
    assert page.console == []


def large_bins(count: int) -> Bins:
    """Bins with the extremes that headers may have."""
    first = np.arange(count, dtype=np.int64) * 10
    extreme = np.where(first == 20, np.iinfo(np.int64).max, first)
    shares = [np.full((count, len(names)), 50, np.int64) for names in (FORMATS, CODECS, STATES)]
    columns = [
        first,
        first + 9,
        first,
        extreme,
        first * 0 - 1,
        first,
        first * 0 + 2,
        first * 0 + 900,
        first,
        first * 0,
    ]
    return Bins(*columns, *shares)


def test_report_when_names_are_hostile_and_numbers_extreme_then_they_are_text(
    page: browser.Page, tmp_path: Path
) -> None:
    segment = SegmentReport(ATTACK, 0, 50, 0, 2**63 - 1, 2**62, 5, 3, 1)
    problem = Problem("damage", ATTACK, "corrupt", ATTACK, 0, 2**63 - 1, 3, 2**63 - 1)
    partition = PartitionReport(ATTACK, ATTACK, 0, large_bins(5), 7, [segment], [problem])
    positions = [GroupPosition(ATTACK, ATTACK, 0, 30), GroupPosition(ATTACK, "other", 1, 2**63 - 1)]
    head = PageHead(ATTACK, 1_700_000_000_000, "1.0", 1, False)
    path = tmp_path / "report.html"
    path.write_bytes(b"".join(page_chunks(head, [partition], positions, Totals())))
    page.console.clear()
    page.requests.clear()
    page.open(path.as_uri(), WIDTH, HEIGHT)
    for axis in ("time", "offset"):
        page.run(f"document.querySelector('#axis button[value={axis}]').click()")
        x, y = centre_of(page, "#partition-0 canvas")
        for step in range(-500, 500, 50):
            page.move(x + step, y - 20)
            page.move(x + step, y - 55)
    assert "owned" not in page.run("document.title.slice(0, 5)")
    assert page.run("document.querySelectorAll('img, svg').length") == 0
    assert page.run("document.querySelector('#groups tbody').rows.length") == 2
    assert "\\u202e" in page.run("document.querySelector('#groups tbody').textContent")
    assert page.console == []
    assert page.requests == [path.as_uri()]


def test_report_when_there_are_10000_segments_then_the_page_is_small_and_draws_what_is_seen(
    page: browser.Page, tmp_path: Path
) -> None:
    for number in range(100):
        write_copies(tmp_path / "logs" / f"many-{number}", 100, segment_bytes=200, records=5)
    assert len(segments(tmp_path / "logs")) == 10_000
    path = tmp_path / "report.html"
    assert run("inspect", "--html", path, tmp_path / "logs").exit_code == 0
    assert path.stat().st_size < 4 * 2**20
    page.open(path.as_uri(), WIDTH, HEIGHT)
    page.painted()
    assert len(page.run(ROWS)) == 50
    drawn = "[...document.querySelectorAll('.timeline canvas')].filter(one => one.width > 300).length"
    assert page.run(drawn) < 10
    centre_of(page, "#partition-40 canvas")
    assert colours_in(page, "#partition-40 canvas") > 3
    page.run("document.querySelector('#problems, body').scrollIntoView()")
    assert page.run("document.querySelectorAll('tbody tr').length") < 120
