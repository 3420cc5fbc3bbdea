"""Compiled kernels of kafkafmt: loops over buffers without the GIL. Private: import `kafkafmt` instead."""
