"""Target: the functions that read, write and convert records, in C.

Input: a byte of flags, a byte that makes the first offset of a conversion, then one batch, whose codec does not matter,
or one message of v0 or v1. Whatever the bytes are:

- the reader of plain records, where it reads one, and the reader of all records find the same row;
- the headers of a record that was read can be read, and end where the record ends;
- a record that was read is written in no more bytes, and read again as the same row;
- a conversion fails if and only if its size cannot be predicted; it takes that size, and its messages are the records;
- a message that was read is written as it was.
"""

from __future__ import annotations

from fuzz.native_checks import native_check

check = native_check("records")
