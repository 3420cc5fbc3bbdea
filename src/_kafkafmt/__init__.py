"""Compiled kernels of kafkafmt: nogil loops over buffers. Private: import `kafkafmt` instead."""
