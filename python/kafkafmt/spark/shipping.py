"""`register`: ship kafkafmt to a session's executors, and register its data sources with the session."""

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

# The digests of the archives that each context, or session of Spark Connect, has received.
_shipped: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def register(
    spark: SparkSession, archive: str | os.PathLike[str] | None = None, *, ship: bool | None = None
) -> None:
    """Register the formats `kafkafmt` and `kafkafmt.kafka`, and ship kafkafmt to executors that lack it.

    Executors receive an archive of the kafkafmt that runs here, and unpack it once for each machine (see
    `kafkafmt.spark.unpack`). It contains kafka-python if that is installed here. Executors must have numpy and pyarrow.
    A second call does nothing.

    With a local master, workers use this Python instead of the `python3` of the PATH, unless PYSPARK_PYTHON is set.

    archive: a file of `kafkafmt spark-archive`, for executors on another platform.
    ship: False if executors have kafkafmt installed. True to ship it with any master, as to another Python on this
    machine (PYSPARK_PYTHON). By default a local master receives only a given `archive`.

    Raises TypeError if `spark` is no session of PySpark 4.1 or later; ValueError if `archive` is given and `ship` is
    False; ArchiveError if the archive does not exist or cannot be built. Then pass `archive`.
    """
    if not hasattr(spark, "dataSource"):
        raise TypeError(
            f"register takes a SparkSession of PySpark 4.1 or later, not {type(spark).__qualname__}"
        )
    if archive is not None and ship is False:
        raise ValueError("archive: expected None with ship=False, since it is not to be shipped")
    is_local = _is_local(spark)
    if is_local and "PYSPARK_PYTHON" not in os.environ:
        _context(spark).pythonExec = sys.executable
    if ship or archive is not None or (ship is None and not is_local):
        _ship(spark, Path(archive) if archive is not None else loaded_from() or _built())
    from kafkafmt.spark.data_source import SOURCES  # needs pyspark

    for source in SOURCES:
        spark.dataSource.register(source)


def _is_local(spark: SparkSession) -> bool:
    """Return whether workers run on this machine for this process. With Spark Connect they run for the server."""
    context = _context(spark)
    return context is not None and context.master.partition("[")[0] == "local"


def _context(spark: SparkSession) -> Any:
    """Return the session's context, or None with Spark Connect, which has none."""
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
        context.addPyFile(str(archive))  # jobs of the context do not receive artifacts
    known.add(digest)


def _was_submitted(context: Any, archive: Path) -> bool:
    """Return whether the driver was itself submitted with the archive as --py-files.

    Then executors have the archive, and Spark refuses another file of the same name.
    """
    names = {url.rpartition("/")[2] for url in context.listFiles}
    return archive == loaded_from() and archive.name in names


@functools.cache
def _built() -> Path:
    """Build an archive of the installed packages. It stays until this process ends: executors may still request it."""
    folder = Path(_folder().name)
    built = write_archive(folder / "kafkafmt.zip")
    # A name for each content: Spark refuses another file of the same name.
    return (folder / "kafkafmt.zip").rename(folder / f"kafkafmt-{built.digest[:16]}.zip")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kafkafmt-archive-")
