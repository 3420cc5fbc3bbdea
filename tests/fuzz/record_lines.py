"""Target: records of internal topics as JSON lines.

Input: three bytes of options (the topic and whether it is a control record, then the size of the key), then the key and
the value. Whatever they are:

- the record has one line, which is JSON;
- its key and value are what the decoders of the schemas read in them, or their bytes with an error;
- as a record of an ordinary topic, its line is that of `json.dumps`.
"""

from __future__ import annotations

from schemas.record_objects import TOPICS, assert_objects, batch_of, expected_lines, lines_of

OPTIONS_LENGTH = 3
NAMES = tuple(TOPICS)
CONTROL = 0x40
NULL_KEY = 0x80


def check(data: bytes) -> None:
    options, content = data[:OPTIONS_LENGTH].ljust(OPTIONS_LENGTH, b"\0"), data[OPTIONS_LENGTH:]
    size = int.from_bytes(options[1:], "big")
    key = None if options[0] & NULL_KEY else content[:size]
    pair = key, content[size:]
    is_control = bool(options[0] & CONTROL)
    assert_objects(NAMES[options[0] % len(NAMES)], [pair], is_control=is_control)
    batch = batch_of([pair], is_control=is_control)
    assert lines_of(batch) == expected_lines(batch)
