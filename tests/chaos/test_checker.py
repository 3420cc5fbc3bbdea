"""The checker of `make chaos`, given histories in which one thing is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.checker import Findings, Log, check_copy, check_deliveries, check_log, check_same
from chaos.history import Delivery, Mark, Place, Received, Row, Sent, name_of, read_received, read_sent, value

TOPIC = "events"


def sent(*acked: int, end: int = 10) -> Sent:
    """A run of which these records were acknowledged, each at the offset of its number."""
    return Sent("p.1", TOPIC, is_transactional=False, end=end, acked={n: Place(0, n) for n in acked})


def transactions(asked: list[range], committed: list[range], aborted: list[range]) -> Sent:
    return Sent(
        "p.1", TOPIC, is_transactional=True, end=10, asked=asked, committed=committed, aborted=aborted
    )


def log(*numbers: int) -> Log:
    """A partition with these records of the run, from offset 0 on."""
    return {0: [Row(offset, f"p.1:{number}") for offset, number in enumerate(numbers)]}


def kinds_of_log(found: Log, *all_sent: Sent) -> dict[str, int]:
    findings = Findings()
    check_log(TOPIC, found, all_sent, findings)
    return findings.kinds()


def kinds_of_copy(source: Log, copy: Log, *, is_exact: bool) -> tuple[dict[str, int], int]:
    findings = Findings()
    check_copy("copy", source, copy, findings, is_exact=is_exact)
    return findings.kinds(), findings.counts["doubled in copy"]


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        pytest.param(log(0, 1, 2), {}, id="all are there"),
        pytest.param(log(0, 1), {"lost": 1}, id="one is lost"),
        pytest.param(log(0, 1, 2, 1), {"doubled": 1, "moved": 1}, id="one is doubled"),
        pytest.param(log(0, 2, 1), {"order": 1, "moved": 2}, id="two are swapped"),
        pytest.param(log(0, 1, 2, 9), {}, id="one was sent, and not acknowledged"),
        pytest.param(log(0, 1, 2, 10), {"unknown": 1}, id="one was never sent"),
        pytest.param({**log(0, 1, 2), 1: [Row(0, "q.1:0")]}, {"unknown": 1}, id="one of another producer"),
    ],
)
def test_check_log_when_records_were_acknowledged_then_finds_what_is_wrong(
    found: Log, kinds: dict[str, int]
) -> None:
    assert kinds_of_log(found, sent(0, 1, 2)) == kinds


def test_check_log_when_a_place_was_not_told_then_any_place_is_right_and_it_is_counted() -> None:
    told = Sent("p.1", TOPIC, is_transactional=False, end=10, acked={2: Place(0, 0), 3: Place(0, -1)})
    findings = Findings()
    check_log(TOPIC, log(2, 3), [told], findings)
    assert findings.kinds() == {}
    assert findings.counts["acknowledged without an offset"] == 1
    assert kinds_of_log(log(2), told) == {"lost": 1}


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        pytest.param(log(0, 1, 4, 5), {}, id="committed, and unknown as a whole"),
        pytest.param(log(0, 1), {}, id="committed, and unknown not at all"),
        pytest.param(log(0, 1, 4), {"atomicity": 1}, id="a part of an unknown one"),
        pytest.param(log(0), {"atomicity": 1, "lost": 1}, id="a part of a committed one"),
        pytest.param(log(0, 1, 2), {"aborted": 1}, id="one of an aborted one"),
        pytest.param(log(0, 1, 6), {"aborted": 1}, id="one whose commit nobody asked for"),
    ],
)
def test_check_log_when_records_are_of_transactions_then_finds_what_is_wrong(
    found: Log, kinds: dict[str, int]
) -> None:
    all_of = transactions([range(2), range(4, 6)], [range(2)], [range(2, 4)])
    assert kinds_of_log(found, all_of) == kinds


@pytest.mark.parametrize(
    ("copy", "exact", "at_least_once", "doubled"),
    [
        pytest.param(log(0, 1, 2, 3), {}, {}, 0, id="the same"),
        pytest.param(log(0, 1, 3), {"lost": 1}, {"lost": 1}, 0, id="one is lost"),
        pytest.param(log(0, 1, 2), {"lost": 1}, {"lost": 1}, 0, id="the last is lost"),
        pytest.param(log(0, 1, 2, 1, 2, 3), {"doubled": 2}, {}, 2, id="a range is repeated"),
        pytest.param(log(0, 1, 2, 0, 2, 3), {"doubled": 2, "order": 1}, {"order": 1}, 2, id="with a gap"),
        pytest.param(log(0, 2, 1, 3), {"lost": 1, "doubled": 1, "order": 0}, {"lost": 1}, 1, id="swapped"),
        pytest.param(log(0, 1, 2, 3, 7), {"unknown": 1}, {"unknown": 1}, 0, id="one is not of the source"),
    ],
)
def test_check_copy_when_it_differs_from_the_source_then_finds_what_is_wrong(
    copy: Log, exact: dict[str, int], at_least_once: dict[str, int], doubled: int
) -> None:
    source = log(0, 1, 2, 3)
    assert kinds_of_copy(source, copy, is_exact=True) == ({k: n for k, n in exact.items() if n}, doubled)
    assert kinds_of_copy(source, copy, is_exact=False) == (at_least_once, doubled)


@pytest.mark.parametrize(
    ("copy", "told"),
    [
        (log(0, 1), "expected Row(offset=2, name='p.1:2'), found its end after 2"),
        (log(0, 2, 1), "expected Row(offset=1, name='p.1:1'), found Row(offset=1, name='p.1:2')"),
        (log(0, 1, 2, 3), "expected the end after 3, found Row(offset=3, name='p.1:3')"),
    ],
)
def test_check_same_when_offsets_differ_then_tells_the_first(copy: Log, told: str) -> None:
    findings = Findings()
    check_same("backup", log(0, 1, 2), copy, findings)
    assert findings.problems == [f"differs: backup-0: {told}"]


def received(*events: int | str, commits: tuple[tuple[float, int], ...] = (), run: str = "c.1") -> Received:
    """A member that got these offsets, one a second; "g" is an assignment."""
    told = Received(run, commits=[Mark(at, TOPIC, 0, offset) for at, offset in commits])
    for at, event in enumerate(events):
        if isinstance(event, str):
            told.events.append(Mark(float(at), TOPIC, 0, -1))
        else:
            told.events.append(Delivery(float(at), TOPIC, 0, Row(event, f"p.1:{event}")))
    return told


@pytest.mark.parametrize(
    ("members", "kinds", "again"),
    [
        pytest.param([received("g", 0, 1, 2)], {}, 0, id="each once"),
        pytest.param([received("g", 0, 2)], {"lost": 1}, 0, id="one is lost"),
        pytest.param([received("g", 0, 1), received("g", 1, 2)], {}, 1, id="one again, not committed"),
        pytest.param(
            [received("g", 0, 1, "g", 1, 2, commits=((2.5, 2),))], {"rewound": 1}, 1, id="committed"
        ),
        pytest.param([received("g", 0, 2, 1)], {"order": 1}, 0, id="two are swapped"),
        pytest.param([received("g", 0, 1, 2, 3)], {"unknown": 1}, 0, id="one is not in the log"),
    ],
)
def test_check_deliveries_when_members_got_records_then_finds_what_is_wrong(
    members: list[Received], kinds: dict[str, int], again: int
) -> None:
    findings = Findings()
    check_deliveries("group", {TOPIC: log(0, 1, 2)}, members, findings)
    assert findings.kinds() == kinds
    assert findings.counts["delivered to group again"] == again


def test_histories_when_a_kill_has_cut_the_last_line_then_the_others_count(tmp_path: Path) -> None:
    file = tmp_path / "p.1.sent"
    file.write_text("s 3\na 0 1 7\nf 1 KafkaTimeoutError\nt 0 2\nc 0 2\nx 2 3\na 2 1")
    told = read_sent(file, "p.1", TOPIC, is_transactional=True)
    assert (told.end, told.acked, told.failed) == (3, {0: Place(1, 7)}, {1: "KafkaTimeoutError"})
    assert (told.asked, told.committed, told.aborted) == ([range(2)], [range(2)], [range(2, 3)])
    file.write_text("g 1.5 events 0\nr 2.5 events 0 7 p.1:3\nk 3.5 events 0 8\nr 4.5 eve")
    got = read_received(file, "c.1")
    assert got.events == [Mark(1.5, TOPIC, 0, -1), Delivery(2.5, TOPIC, 0, Row(7, "p.1:3"))]
    assert got.commits == [Mark(3.5, TOPIC, 0, 8)]


def test_name_of_when_the_value_is_padded_then_is_the_name() -> None:
    assert name_of(value("p.1", 12, 100)) == "p.1:12"
    assert len(value("p.1", 12, 100)) == 100


def test_findings_when_one_kind_is_found_often_then_tells_the_first_ones() -> None:
    findings = Findings()
    for number in range(100):
        findings.add("lost", str(number))
    assert findings.problems[0] == "lost: 0"
    assert findings.problems[-1] == "lost: and more"
    assert len(findings.problems) == 11
    assert findings.kinds() == {"lost": 100}
