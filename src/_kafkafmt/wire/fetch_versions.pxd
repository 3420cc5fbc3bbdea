# The versions of Fetch that add or drop fields, and the sizes of elements that both sides check counts with.

cdef enum:
    THROTTLE_TIME = 1
    MAX_BYTES = 3
    ISOLATION_LEVEL = 4     # and aborted transactions (KIP-98)
    LOG_START_OFFSET = 5
    SESSIONS = 7            # KIP-227
    LEADER_EPOCH = 9        # KIP-320
    RACK = 11               # KIP-392
    FLEXIBLE = 12           # and the epoch that was fetched last
    TOPIC_IDS = 13          # KIP-516
    NO_REPLICA_ID = 15      # KIP-903
    ENDPOINTS = 16          # KIP-951
