"""Scan records of logs and of clusters as Arrow: planned in tasks, bounded, and no more than is asked for."""
