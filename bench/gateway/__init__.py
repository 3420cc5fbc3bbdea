"""The endpoint beside a real broker over the same segments: `python -m bench.serve`."""
