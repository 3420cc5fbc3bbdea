"""The producer path beside other clients': records a second, and what of the processor they take."""
