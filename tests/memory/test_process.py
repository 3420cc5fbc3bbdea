"""A bounded process takes little address space beside what it counts, and gives back what it frees."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import sysconfig

import pytest

MIB = 1024 * 1024
THREADS = 8

# Each thread allocates, so that it gets an arena; a block beyond the threshold is freed, and was seen by the allocator.
_CHILD = f"""
import json, re, sys, threading
from kafkafmt.memory.process import bound_process

def status():
    text = open("/proc/self/status").read()
    return {{name: int(kib) * 1024 for name, kib in re.findall(r"(VmSize|VmRSS):\\s+(\\d+)", text)}}

is_bound = sys.argv[1] == "bound" and bound_process()
before = status()
met, leave = threading.Barrier({THREADS} + 1), threading.Event()

def work():
    held = [bytes(1000) for _ in range(100)]
    met.wait()
    leave.wait()
    del held

threads = [threading.Thread(target=work) for _ in range({THREADS})]
for thread in threads:
    thread.start()
met.wait()
during = status()
leave.set()
for thread in threads:
    thread.join()
for _ in range(3):
    blocks = [bytearray(4 * {MIB}) for _ in range(16)]
    blocks.clear()
print(json.dumps([is_bound, during["VmSize"] - before["VmSize"], status()["VmRSS"] - before["VmRSS"]]))
"""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

IS_GLIBC = platform.libc_ver()[0] == "glibc"
needs_glibc = pytest.mark.skipif(not IS_GLIBC, reason="glibc gives each thread an arena and 8 MiB of stack")


def grown(how: str) -> tuple[bool, int, int]:
    """Whether it was bound, the address space of eight threads, and what is resident once all is freed."""
    done = subprocess.run([sys.executable, "-c", _CHILD, how], stdout=subprocess.PIPE, check=True)
    is_bound, threads_bytes, left_bytes = json.loads(done.stdout)
    return is_bound, threads_bytes, left_bytes


@needs_glibc
@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="without the GIL CPython's own allocator has the memory, and keeps it",
)
def test_threads_of_a_bound_process_when_they_allocate_then_take_little_address_space() -> None:
    is_bound, threads_bytes, left_bytes = grown("bound")
    assert is_bound
    assert threads_bytes < THREADS * 2 * MIB
    assert left_bytes < 8 * MIB


@needs_glibc
def test_threads_of_another_process_when_they_allocate_then_take_that_much() -> None:
    _, threads_bytes, _ = grown("not")
    assert threads_bytes > THREADS * 8 * MIB


@pytest.mark.skipif(IS_GLIBC, reason="needs another C library, as musl")
def test_process_when_its_c_library_is_not_glibc_then_is_not_bound() -> None:
    is_bound, _, _ = grown("bound")
    assert not is_bound
