"""Put the clients that .venv cannot hold into build/clients: a folder each, for PYTHONPATH.

`python tests/clients/install.py` installs what is absent, all or those named, and prints the folders. A folder is made
beside its place and renamed into it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SITES = Path(__file__).resolve().parents[2] / "build" / "clients"

# Each with all that it imports, since what it names as its requirements is of its own time. pykafka imports
# pkg_resources, which newer releases of setuptools lack.
REQUIREMENTS = {
    "kafka-python-1.3.5": ("kafka-python==1.3.5", "six", "xxhash"),
    "pykafka-2.8.0": ("pykafka==2.8.0", "kazoo==2.5.0", "setuptools<81", "six", "tabulate", "xxhash"),
}


def site(name: str) -> Path:
    """The folder of a client, after installing it where it is absent."""
    folder = SITES / name
    if not folder.is_dir():
        SITES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="installing-", dir=SITES) as partial:
            new = Path(partial) / name
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
            subprocess.run([*pip, "--no-deps", "--target", str(new), *REQUIREMENTS[name]], check=True)
            new.rename(folder)
    return folder


if __name__ == "__main__":
    for name in sys.argv[1:] or REQUIREMENTS:
        print(site(name))
