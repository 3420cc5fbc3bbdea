"""Consumers of a real broker beside other clients': records a second, and what they take of processors and memory."""
