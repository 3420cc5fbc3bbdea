"""The payloads of keys or values with one schema, and what a format decodes them to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


class Payloads(NamedTuple):
    """Payloads without their framing: payload i is data[starts[i]:ends[i]].

    data: uint8. starts, ends: int64.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)


class DecodedPayloads(NamedTuple):
    """A value for each of some payloads, in their order.

    array: null for a payload that could not be decoded. errors: what is wrong with these payloads, by index: one line
    with the position in the payload.
    """

    array: pa.Array
    errors: Mapping[int, str]


class PayloadDecoder(Protocol):
    """Decodes payloads that one schema wrote to the type of the reader."""

    @property
    def type(self) -> pa.DataType: ...

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        """Decode payloads. A payload that is damaged becomes an error, and never raises."""
        ...
