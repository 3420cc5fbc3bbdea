"""Target: the functions that read and write text and numbers, in C.

Input: a byte that chooses what is checked, then the bytes. Whatever they are:

- they are UTF-8 if and only if CPython decodes them;
- UTF-8 that is written as a string of JSON is read as it was; a string of JSON that was read is UTF-8, and is
  written and read as the same;
- a number of JSON is the double, the float and the integer that the C library reads, and as a decimal that integer;
- an integer is written as the C library writes it;
- a date is the day that the C library has; a time is within a day, and an offset, of its date;
- a varint is written in no more bytes than it was read from, and in as many as were predicted.
"""

from __future__ import annotations

from fuzz.native_checks import native_check

check = native_check("text")
