"""`register`: kafkafmt brought to a Spark session's executors, and its data sources made known to the session."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kafkafmt.spark.archive import loaded_from, read_archive, write_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The digests that each context, or session of Spark Connect, was given.
_shipped: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def register(
    spark: SparkSession, archive: str | os.PathLike[str] | None = None, *, ship: bool | None = None
) -> None:
    """Make the formats `kafkafmt` and `kafkafmt.kafka` work, on executors that have no kafkafmt as well.

    Executors get an archive of the kafkafmt that runs here, which they unpack once a machine (see
    `kafkafmt.spark.unpack`); numpy and pyarrow they must have. kafka-python goes along where it is
    installed here. Doing it again does nothing. The workers of a local
    master become this Python, which has all of that, unless PYSPARK_PYTHON names one: Spark takes the `python3` of
    the PATH otherwise.

    archive: what `kafkafmt spark-archive` wrote, for executors of another platform than this one.
    ship: False where executors have kafkafmt installed; True to ship it whatever the master is, as to a Python
    that is not this one (PYSPARK_PYTHON) on this machine. Unless told, a local master gets nothing but an
    `archive` that is given.

    Raises TypeError for what is no session of PySpark 4.1 or later, ValueError for an archive that is not to be
    shipped, and ArchiveError where there is none or none can be built: pass `archive` then.
    """
    if not hasattr(spark, "dataSource"):
        raise TypeError(
            f"register takes a SparkSession of PySpark 4.1 or later, not {type(spark).__qualname__}"
        )
    if archive is not None and ship is False:
        raise ValueError("an archive is given, and is not to be shipped: leave out one of both")
    is_local = _is_local(spark)
    if is_local and "PYSPARK_PYTHON" not in os.environ:
        _context(spark).pythonExec = sys.executable
    if ship or archive is not None or (ship is None and not is_local):
        _ship(spark, Path(archive) if archive is not None else loaded_from() or _built())
    from kafkafmt.spark.data_source import SOURCES  # needs pyspark

    for source in SOURCES:
        spark.dataSource.register(source)


def _is_local(spark: SparkSession) -> bool:
    """Whether the workers are those of this process. A server of Spark Connect is another one."""
    context = _context(spark)
    return context is not None and context.master.partition("[")[0] == "local"


def _context(spark: SparkSession) -> Any:
    """The session's context; None with Spark Connect, which has none."""
    return getattr(spark, "sparkContext", None)


def _ship(spark: SparkSession, archive: Path) -> None:
    digest = read_archive(archive).digest
    context = _context(spark)
    known = _shipped.setdefault(spark if context is None else context, set())
    if digest in known:
        return
    if context is None:
        spark.addArtifacts(str(archive), pyfile=True)
    elif not _was_submitted(context, archive):
        context.addPyFile(str(archive))  # for jobs of the context as well, to which artifacts are not given
    known.add(digest)


def _was_submitted(context: Any, archive: Path) -> bool:
    """Whether this driver itself runs from the archive, which --py-files gave to executors as well.

    Spark has a copy of it among its files then, and refuses to be given that as another file of the same name.
    """
    names = {url.rpartition("/")[2] for url in context.listFiles}
    return archive == loaded_from() and archive.name in names


@functools.cache
def _built() -> Path:
    """An archive of what is installed here, kept as long as this process, as executors may ask for it any time."""
    folder = Path(_folder().name)
    built = write_archive(folder / "kafkafmt.zip")
    # Spark does not take another file of the same name.
    return (folder / "kafkafmt.zip").rename(folder / f"kafkafmt-{built.digest[:16]}.zip")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kafkafmt-archive-")
