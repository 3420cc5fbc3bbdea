"""kafkafmt shipped to executors: `register`, and archives by `--py-files`."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from data.real_logs import LOGS, expected
from kafkafmt.spark import ArchiveError, register
from kafkafmt.spark.archive import read_archive, write_archive
from spark.archives import link_packages
from spark.reads import splits

pytestmark = pytest.mark.slow

LOG = LOGS / "zstd-0"
JOB = Path(__file__).parent / "jobs" / "decode.py"
CLUSTER = "local-cluster[2,1,1024]"
EXECUTOR_PACKAGES = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "tzdata", "six")


# What is shipped, and to whom


class Context:
    def __init__(self, master: str) -> None:
        self.master = master
        self.shipped: list[Path] = []
        self.listFiles: list[str] = []
        self.pythonExec = "python of the session"

    def addPyFile(self, path: str) -> None:  # noqa: N802
        self.shipped.append(Path(path))


class Session:
    """What `register` uses of a session."""

    def __init__(self, master: str) -> None:
        self.sparkContext = Context(master)
        self.registered: list[object] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)


class ConnectSession:
    """What it uses of one of Spark Connect, which has no context."""

    def __init__(self) -> None:
        self.shipped: list[Path] = []
        self.dataSource = SimpleNamespace(register=lambda source: None)

    def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802
        assert pyfile
        self.shipped.append(Path(path))


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> type:
    """The class that is to be registered, without pyspark."""
    module = ModuleType("kafkafmt.spark.data_source")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = type("KafkafmtDataSource", (), {})
    module.SOURCES = (source,)  # type: ignore[attr-defined]
    return source


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "mine.zip"
    write_archive(path)
    return path


def registered(spark: Any, *arguments: Any, **options: Any) -> Any:
    register(spark, *arguments, **options)
    return spark


def test_session_on_a_cluster_when_registered_then_is_given_what_is_installed(
    source: type, archive: Path
) -> None:
    spark = registered(Session("spark://host:7077"))
    (path,) = spark.sparkContext.shipped
    assert read_archive(path) == read_archive(archive)
    assert path.name == f"kafkafmt-{read_archive(path).digest[:16]}.zip"
    assert spark.registered == [source]


def test_session_when_registered_again_then_is_shipped_nothing_more(source: type, archive: Path) -> None:
    spark = registered(registered(Session("yarn")), archive)
    assert len(spark.sparkContext.shipped) == 1
    assert spark.registered == [source] * 2
    (again,) = registered(Session("yarn")).sparkContext.shipped
    assert again == spark.sparkContext.shipped[0]


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,3]"])
def test_local_session_when_registered_then_is_shipped_nothing_unless_told(
    master: str, archive: Path
) -> None:
    assert registered(Session(master)).sparkContext.shipped == []
    assert registered(Session(master), archive).sparkContext.shipped == [archive]
    assert len(registered(Session(master), ship=True).sparkContext.shipped) == 1


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("chosen", "workers"), [(None, sys.executable), ("/opt/python", "python of the session")]
)
def test_local_session_when_registered_then_workers_are_this_python_unless_another_was_chosen(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, workers: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
    assert registered(Session("local[2]")).sparkContext.pythonExec == workers
    assert registered(Session("yarn"), ship=False).sparkContext.pythonExec == "python of the session"


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "yarn", "k8s://https://host"])
def test_executors_when_known_to_have_it_then_are_shipped_nothing(master: str) -> None:
    assert registered(Session(master), ship=False).sparkContext.shipped == []


@pytest.mark.usefixtures("source")
def test_session_of_spark_connect_when_registered_then_gets_an_artifact(archive: Path) -> None:
    assert registered(ConnectSession(), archive).shipped == [archive]
    assert len(registered(registered(ConnectSession())).shipped) == 1
    assert registered(ConnectSession(), ship=False).shipped == []


@pytest.mark.usefixtures("source")
def test_driver_that_runs_from_a_submitted_archive_when_registered_then_ships_nothing_more(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.spark.shipping.loaded_from", lambda: archive)
    submitted, by_hand = Session("yarn"), Session("yarn")
    submitted.sparkContext.listFiles = [f"spark://host:1/files/{archive.name}"]
    assert registered(submitted).sparkContext.shipped == []
    assert registered(by_hand).sparkContext.shipped == [archive]


@pytest.mark.usefixtures("source")
def test_arguments_when_wrong_then_nothing_is_shipped_or_registered(archive: Path, tmp_path: Path) -> None:
    spark = Session("yarn")
    with pytest.raises(TypeError, match=r"takes a SparkSession of PySpark 4\.1 or later, not Context"):
        register(spark.sparkContext)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not to be shipped"):
        registered(spark, archive, ship=False)
    with pytest.raises(ArchiveError, match=r"no\.zip: No such file"):
        registered(spark, tmp_path / "no.zip")
    assert (spark.sparkContext.shipped, spark.registered) == ([], [])


# On a cluster whose executors have no kafkafmt


@pytest.fixture(scope="module")
def executor_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has what PySpark needs, and nothing else."""
    folder = tmp_path_factory.mktemp("executor")
    venv.create(folder, symlinks=True)
    link_packages(next(folder.glob("lib/python*/site-packages")), EXECUTOR_PACKAGES)
    return folder / "bin" / "python"


def run_job(
    command: list[str], python: Path, driver: str, temporary: Path
) -> subprocess.CompletedProcess[str]:
    """Run with workers of `python`; SPARK_LOCAL_IP is set as a machine need not know its own name."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=500,
        env={
            **environment,
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": driver,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(temporary),
        },
        cwd=temporary,
        check=False,
    )


def spark_submit(*arguments: object) -> list[str]:
    import pyspark

    script = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    quiet = ("--conf", "spark.ui.enabled=false", "--conf", "spark.ui.showConsoleProgress=false")
    return [str(script), "--master", CLUSTER, *quiet, *map(str, arguments)]


def assert_decoded(
    found: subprocess.CompletedProcess[str], temporary: Path, digest: str, sources: int = 1
) -> None:
    module = temporary / f"kafkafmt-{os.getuid()}" / digest / "kafkafmt" / "__init__.py"
    lines = [f"{way} {module}" for way in ("arrow", "rdd", "functions")]
    tasks = len(splits(LOG, splitBytes="1k"))
    assert tasks > 1
    lines += [f"source {len(expected(LOG.name))} {tasks}"] * sources
    assert found.stdout.splitlines() == lines, found.stderr
    assert found.returncode == 0


@pytest.fixture
def s3_log(s3_logs: str, s3_options: Mapping[str, str]) -> str:
    """The same in a bucket: a URI that says all itself."""
    options = dict(s3_options)
    key, secret = options.pop("access_key"), quote(options.pop("secret_key"), safe="")
    within = s3_logs.replace("s3://", f"s3://{key}:{secret}@")
    return f"{within}/{LOG.name}?{urlencode(options)}"


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_executors_without_kafkafmt_when_registered_then_decode_and_read_files_and_s3(
    executor_python: Path, archive: Path, tmp_path: Path, s3_log: str
) -> None:
    command = spark_submit(JOB, "register", LOG, s3_log)
    found = run_job(command, executor_python, sys.executable, tmp_path)
    assert_decoded(found, tmp_path, read_archive(archive).digest, sources=2)


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("how", ["submitted", "register"])
def test_executors_and_driver_without_kafkafmt_when_given_the_archive_then_decode_and_read_files(
    executor_python: Path, archive: Path, tmp_path: Path, how: str
) -> None:
    command = spark_submit("--py-files", archive, JOB, how, LOG)
    found = run_job(command, executor_python, str(executor_python), tmp_path)
    assert_decoded(found, tmp_path, read_archive(archive).digest)


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_executors_without_kafkafmt_when_given_nothing_then_lack_it(
    executor_python: Path, tmp_path: Path
) -> None:
    found = run_job(spark_submit(JOB, "submitted"), executor_python, sys.executable, tmp_path)
    # spark-submit sends both of a driver's streams there.
    assert "No module named 'kafkafmt'" in found.stdout
    assert found.returncode != 0
