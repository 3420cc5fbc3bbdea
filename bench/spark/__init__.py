"""The throughput of the data source on a local Spark, beside a ceiling and other ways: `python -m bench.spark`."""
