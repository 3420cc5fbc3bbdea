"""The zstd library: zstandard, or from Python 3.14 on the standard library under the same names."""

import sys

if sys.version_info >= (3, 14):
    try:
        from kafkafmt.codecs import standard_zstd as zstandard
    except ModuleNotFoundError:  # this Python was built without zstd
        import zstandard
else:
    import zstandard

__all__ = ["zstandard"]
