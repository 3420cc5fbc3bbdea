"""asv's microbenchmarks, against the installed package: `cd bench && asv run --python=same --quick`.

Each is timed for a segment of 1 MiB, which the caches hold; the table of `bench.compare` has what is beyond them.
"""

import sys
from pathlib import Path

# asv puts this folder's parent alone on the path, without its name.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
