"""Target: the reader and the writer of the fields of requests and responses, in C.

Input: a byte that says whether the version is flexible, the number of fields, a byte for the kind of each, then a
frame. Whatever the bytes are:

- the reader stays in the frame, and tells where it failed;
- fields that were read are written in no more bytes, and read again as the same;
- if the version is not flexible, they are written as they were.
"""

from __future__ import annotations

from fuzz.native_checks import native_check

check = native_check("fields")
