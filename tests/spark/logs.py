"""Runs of `kafkafmt convert` on Spark, in a process of their own."""

from __future__ import annotations

import subprocess

from cli.logs import run_process


def convert_on_spark(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """SPARK_LOCAL_IP is set as a machine need not know its own name."""
    return run_process("convert", *arguments, "--engine", "spark", SPARK_LOCAL_IP="127.0.0.1", **environment)
