"""An export to the REST catalog of Iceberg itself, which is killed, continued, compacted and read by pyiceberg."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from broker.jars import ICEBERG_REST
from endpoints.endpoint_process import HOST, lasting_ports
from export.kills import preload, run_until_step
from export.scans import folder_scan, write_log
from export.test_iceberg import STEPS_IN, offsets
from kafkafmt.export import Destination, ExportOptions, compact
from kafkafmt.export.running import run_export
from oracle.kafka import java

pytestmark = [pytest.mark.oracle, pytest.mark.full, pytest.mark.xdist_group("iceberg-rest")]

SERVER = "org.apache.iceberg.rest.RESTCatalogServer"
START_SECONDS = 150


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a catalog on SQLite. The value is its properties for pyiceberg."""
    folder = tmp_path_factory.mktemp("catalog")
    port = lasting_ports(1)
    environment = {
        **os.environ,
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": f"file://{folder}/tables",
        "CATALOG_REST_PORT": str(port),
    }
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [java("java"), f"-Djava.io.tmpdir={folder}", "-cp", ICEBERG_REST.classpath(), SERVER],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        uri = f"http://{HOST}:{port}"
        wait_for(f"{uri}/v1/config", server, folder / "log")
        yield {"type": "rest", "uri": uri}
    finally:
        server.kill()
        server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            urlopen(url, timeout=5).close()
            return
        except (URLError, OSError):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)


def export(source: Path, catalog: dict[str, str], namespace: str, mode: str = "append") -> int:
    options = ExportOptions("hour(timestamp)", mode=mode)
    (report,) = run_export(folder_scan(source), Destination(namespace, "iceberg", catalog), options)
    if report.error is not None:
        raise report.error
    return report.rows


def table_of(catalog: dict[str, str], namespace: str) -> Table:
    return load_catalog(None, **catalog).load_table((namespace, "orders"))


def test_export_when_it_is_killed_at_any_step_then_each_record_is_in_the_table_once(
    tmp_path: Path, catalog: dict[str, str]
) -> None:
    preload(__name__)
    source, chance = tmp_path / "logs", random.Random(1)
    write_log(source, "orders-0", 0, 100)
    steps = run_until_step(-1, STEPS_IN, export, source, catalog, "counted").steps
    end = killed = 0
    while killed < 4:
        end += 100
        killed += run_until_step(
            chance.randrange(1, steps), STEPS_IN, export, source, catalog, "killed"
        ).was_killed
        write_log(source, "orders-0", end, 100)
    export(source, catalog, "killed")
    table = table_of(catalog, "killed")
    assert offsets(table) == list(range(end + 100))
    assert [str(field.transform) for field in table.spec().fields] == ["hour"]


def test_export_when_it_is_compacted_and_continued_then_rows_and_offsets_stay(
    tmp_path: Path, catalog: dict[str, str]
) -> None:
    source = tmp_path / "logs"
    for first in (0, 50):
        write_log(source, "orders-0", first, 50)
        assert export(source, catalog, "compacted") == 50
    report = compact(Destination("compacted", "iceberg", catalog), "orders")
    assert report.files_added < report.files_removed
    assert export(source, catalog, "compacted") == 0
    write_log(source, "orders-0", 100, 100)
    assert export(source, catalog, "compacted") == 100
    assert offsets(table_of(catalog, "compacted")) == list(range(200))


def test_upsert_when_runs_follow_each_other_then_the_table_has_the_latest_row_of_each_key(
    tmp_path: Path, catalog: dict[str, str]
) -> None:
    source = tmp_path / "logs"
    for first in (0, 100):
        write_log(source, "orders-0", first, 100)
        export(source, catalog, "latest", "upsert")
    assert offsets(table_of(catalog, "latest")) == list(range(193, 200))
