"""The options of a consumer that its fetches read."""

FETCH_CONFIG = {
    "fetch_max_wait_ms": 500,
    "fetch_min_bytes": 1,
    "isolation_level": "read_uncommitted",
    "client_rack": "",
    "client_id": "me",
    "enable_incremental_fetch_sessions": False,
    "max_partition_fetch_bytes": 1000,
    "fetch_max_bytes": 1000,
    "retry_backoff_ms": 100,
    "connections_max_idle_ms": 1000,
}
