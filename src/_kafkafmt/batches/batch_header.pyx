"""The header of one batch, for Python."""

from ..wire.layout cimport NO_SEQUENCE
from ..wire.rows cimport BatchRow, sequence_after
from .scan cimport BatchRun


cdef class BatchHeader:
    """The header fields of one batch, with Kafka's names."""

    cdef BatchRow row
    cdef readonly BatchRun run
    cdef readonly Py_ssize_t number

    def __init__(self, BatchRun run not None, Py_ssize_t number):
        run.check_range(number, number + 1)
        self.run = run
        self.number = number
        self.row = run.rows[number]

    @property
    def magic(self):
        return self.row.magic

    @property
    def position(self):
        return self.row.position

    @property
    def size_in_bytes(self):
        return self.row.size

    @property
    def base_offset(self):
        """-1 for a compressed v0/v1 wrapper: only its payload has it."""
        return self.row.base_offset

    @property
    def count(self):
        """-1 for a compressed v0/v1 wrapper: only its payload has it."""
        return self.row.count

    @property
    def last_offset(self):
        return self.row.last_offset

    @property
    def next_offset(self):
        return <object>self.row.last_offset + 1

    @property
    def base_timestamp(self):
        return self.row.base_timestamp

    @property
    def max_timestamp(self):
        return self.row.max_timestamp

    @property
    def delete_horizon_ms(self):
        return self.row.base_timestamp if self.row.has_delete_horizon else None

    @property
    def partition_leader_epoch(self):
        return self.row.partition_leader_epoch

    @property
    def producer_id(self):
        return self.row.producer_id

    @property
    def producer_epoch(self):
        return self.row.producer_epoch

    @property
    def base_sequence(self):
        return self.row.base_sequence

    @property
    def last_sequence(self):
        if self.row.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return sequence_after(self.row.base_sequence, self.row.base_offset, self.row.last_offset)

    @property
    def is_transactional(self):
        return bool(self.row.is_transactional)

    @property
    def is_control(self):
        return bool(self.row.is_control)

    @property
    def crc(self):
        return self.row.crc
