"""Producers, consumers, mirrors, a gateway and backups against three brokers while faults strike: `python -m chaos`."""
