"""Start a Spark session for a command, without Spark's output. A missing pyspark or Java is an error in one line.

The output of the JVM goes to a temporary file, so that a command prints only its own output. Under spark-submit the JVM
already runs, and its output is not changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

from kafkafmt._util.user_errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTRA = "pip install 'kafkafmt[spark]'"
_EXIT_SECONDS = 20
# The last line of a Python traceback, the first without indentation: the exception's type and message.
_RAISED = re.compile(r"^[\w.]+: (?P<message>\S.*)$", re.MULTILINE)

# The class of an exception whose message begins with one of Spark's error conditions, as [DATA_SOURCE_NOT_FOUND].
_CLASS_OF_CONDITION = re.compile(r"^[\w.$]+: (?=\[[A-Z][A-Z0-9_.]+\] )")
_CLASS_LOADER = "java.lang.ClassNotFoundException"


class SparkUnavailableError(UserError, RuntimeError):
    """Spark cannot be used: pyspark or Java is missing, or the master does not answer."""


@contextlib.contextmanager
def spark_session(
    name: str, master: str | None = None, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[SparkSession]:
    """Yield a Spark session, and stop it at the end of the block.

    master: by default the configured one, or `local[*]`. settings: Spark's settings. Python workers use
    this interpreter, unless PYSPARK_PYTHON is set. Raises SparkUnavailableError.
    """
    # They concern versions of packages that kafkafmt does not use.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    try:
        import pyspark
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkUnavailableError(f"--engine spark needs pyspark: {_EXTRA}") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    with tempfile.TemporaryFile() as log:
        try:
            gateway = launch_gateway(popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        except Exception as error:
            raise SparkUnavailableError(f"Spark did not start: {_reason(log, error)}") from None
        process = gateway.proc
        try:
            conf = pyspark.SparkConf(_jvm=gateway.jvm)
            conf.setIfMissing("spark.master", "local[*]").setAppName(name)
            conf.setIfMissing("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
            if master is not None:
                conf.setMaster(master)
            conf.setAll(list(settings.items()))
            try:
                session = SparkSession(pyspark.SparkContext(conf=conf, gateway=gateway))
            except Exception as error:
                raise SparkUnavailableError(f"Spark did not start: {_reason(log, error)}") from None
            try:
                session.sparkContext.setLogLevel("ERROR")
                yield session
            finally:
                session.stop()
        finally:
            gateway.shutdown()
            if process is not None:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the JVM. It exits when its standard input is closed, else it is killed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _reason(log: IO[bytes], error: Exception) -> str:
    """Return the reason of a failed start in one line, from the output of the JVM or from the exception."""
    log.seek(0)
    printed = log.read().decode("utf-8", "replace")
    if re.search(r"JAVA_HOME is not set|java: (command )?not found|No such file or directory", printed):
        return f"no Java found: install a JDK 17 or later and set JAVA_HOME ({_EXTRA} for the rest)"
    return first_line(error) or printed.strip().rpartition("\n")[2]


def first_line(error: BaseException) -> str:
    """Return the message of a Java or Python exception without traces. Of Python code on an executor, its message."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        cause = java
        while cause.getCause() is not None and not _is_of_class_loader(cause.getCause()):
            cause = cause.getCause()
        error_text = _CLASS_OF_CONDITION.sub("", str(cause.toString()))
    else:
        error_text = str(error)
    _, trace, raised = error_text.rpartition("Traceback (most recent call last):")
    if trace:
        found = _RAISED.search(raised)
        if found is not None:
            return found["message"]
    return error_text.strip().partition("\n")[0]


def _is_of_class_loader(cause: Any) -> bool:
    """Return whether a Java exception only names a missing class: the exception around it says more."""
    return str(cause.getClass().getName()) == _CLASS_LOADER
