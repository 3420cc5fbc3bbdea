"""The documents' own experiments, one module each, run as `python -m bench.experiments.<name>`."""

import sys

from bench import ROOT

# Modules of the tests import each other by the names that pytest gives them.
sys.path.append(str(ROOT / "tests"))
