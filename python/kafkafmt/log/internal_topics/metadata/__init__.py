"""The metadata of a KRaft cluster: topics, configurations, ACLs, users, brokers and so on, out of `__cluster_metadata`.

| module | contents |
|---|---|
| `entities` | the dataclasses of the entities |
| `cluster` | `ClusterMetadata`: all entities at one offset |
| `rows` | the entities as rows, for JSON, Arrow and Spark |
| `replay` | records that are applied to entities |
| `snapshots` | the snapshots beside the segments |
| `reader` | `cluster_metadata`, which reads a snapshot and the log after it |
"""
