"""`kafkafmt export --dry-run`: what would be exported, and which tables would fail."""

from __future__ import annotations

import json
from pathlib import Path

from cli.logs import run
from export.scans import write_log


def test_dry_run_when_a_table_would_fail_then_json_has_an_object_for_it_and_a_summary(tmp_path: Path) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    for topic in ("orders", "users"):
        write_log(source, f"{topic}-0", 0, 10)
    (lake / "orders").mkdir(parents=True)
    run("export", source, lake, "--topics", "orders")
    (source / "orders-0" / f"{0:020}.log").unlink()
    write_log(source, "orders-0", 30, 10)
    result = run("export", source, lake, "--dry-run", "--json")
    failing, other, last = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 1
    assert (failing["topic"], failing["table"], failing["status"]) == ("orders", "orders", "would fail")
    assert "expected offset 10, with which the table continues, found 30" in failing["error"]
    assert (other["topic"], other["status"], other["error"]) == ("users", "would export", None)
    size = other["source_bytes"]
    assert last == {"summary": {"tables": 2, "failed": 1, "offsets": 10, "source_bytes": size}}
    assert not (lake / "users").exists()
    result = run("export", source, lake, "--dry-run")
    assert "would fail: " in result.stderr
    assert "users" in result.stdout
