"""A gateway: clients of any age on a cluster whose brokers have dropped the versions that they use."""
