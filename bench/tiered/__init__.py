"""Tiered storage on Spark, compared with plain segments in the same store."""
