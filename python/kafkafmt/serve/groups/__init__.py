"""Consumer groups: Kafka's classic group protocol, for consumers of any age, and the offsets that they commit.

One `GroupCoordinator` serves all groups. Who is in which group is kept in memory: after a restart members are told
UNKNOWN_MEMBER_ID and join again. What they committed is kept by an `OffsetStore`, in a folder or in memory: a commit
is durable before it is answered. What clients can make either hold is limited (`GroupOptions`).

    store = OffsetStore(options.state, options.groups.max_offsets_bytes)
    coordinator = GroupCoordinator(store, catalog, node, options.groups)
    handlers = {**handlers, **coordinator.handlers()}
    ...
    coordinator.close()
    await store.close()
"""

from kafkafmt.serve.groups.coordinator import GroupCoordinator
from kafkafmt.serve.groups.offsets import OffsetsFileError
from kafkafmt.serve.groups.store import OffsetStore

__all__ = ["GroupCoordinator", "OffsetStore", "OffsetsFileError"]
