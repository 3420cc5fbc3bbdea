# Which batches a conversion to an older format must decompress, for the kernels that convert runs and that state sizes.

from ..wire.rows cimport BatchRow


cdef inline bint needs_codec(const BatchRow* row, int to_magic) noexcept nogil:
    """Return whether a batch must be decompressed, or converted up."""
    if row.magic > to_magic:
        return row.codec != 0 and not row.is_control
    return row.magic < 2 and to_magic == 2
