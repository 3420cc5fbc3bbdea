"""What tests that build batches of every format draw from."""

from __future__ import annotations

from hypothesis import strategies as st

import kafkafmt as kf

CODECS = {0: list(kf.Codec)[:4], 1: list(kf.Codec)[:4], 2: list(kf.Codec)}
EVERY_FORMAT = [(magic, codec) for magic, codecs in CODECS.items() for codec in codecs]
# Names of headers, those that are not UTF-8 included.
header_names = st.text(max_size=5) | st.binary(max_size=5).map(
    lambda key: key.decode("utf-8", "surrogateescape")
)
