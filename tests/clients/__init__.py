"""Real consumer programs against the endpoint: what each is handed, and what passed on the wire."""
