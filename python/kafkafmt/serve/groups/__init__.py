"""Consumer groups: Kafka's classic group protocol, for consumers of any version, and the offsets that they commit.

One `GroupCoordinator` serves all groups, and holds their members in memory. An `OffsetStore` keeps committed offsets,
in a folder or in memory. In a folder, commits are durable before they are answered. It also keeps the last complete
generation of each group, before members get their assignments: after a restart, even by SIGKILL, they continue without
a rebalance. Without a folder they get UNKNOWN_MEMBER_ID after a restart, and join again. `GroupOptions` limits the
memory and disk space that clients can use.

    store = OffsetStore(options.state, options.groups)
    coordinator = GroupCoordinator(store, catalog, node, options.groups)
    handlers = {**handlers, **coordinator.handlers()}
    coordinator.begin_sessions()  # once connections are accepted
    ...
    coordinator.close()
    await store.close()
"""

from kafkafmt.serve.groups.coordinator import GroupCoordinator
from kafkafmt.serve.groups.offsets import OffsetsFileError
from kafkafmt.serve.groups.store import OffsetStore

__all__ = ["GroupCoordinator", "OffsetStore", "OffsetsFileError"]
