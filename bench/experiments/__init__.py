"""The documents' own experiments, one module each, run as `python -m bench.experiments.<name>`."""
