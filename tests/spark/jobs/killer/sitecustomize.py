"""Kills this executor, JVM and worker, once of all executors: when a segment that was written is to be made durable."""

import os
import signal
import stat
import sys

_fsync = os.fsync


def _parent_of(process):
    with open(f"/proc/{process}/stat") as stat:  # noqa: PTH123
        return int(stat.read().rpartition(")")[2].split()[1])


def fsync(descriptor):
    if "kafkafmt" in sys.modules and stat.S_ISREG(os.fstat(descriptor).st_mode):
        try:
            os.close(os.open(os.environ["KILL_ONCE"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            daemon = os.getppid()
            os.kill(_parent_of(daemon), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
    _fsync(descriptor)


if "KILL_ONCE" in os.environ:
    os.fsync = fsync
