cdef object read_control_record(bytes key, bytes value)
