"""Tiered storage (KIP-405) as a log directory."""

from kafkafmt.storage.tiered.view import TieredFileSystem

__all__ = ["TieredFileSystem"]
