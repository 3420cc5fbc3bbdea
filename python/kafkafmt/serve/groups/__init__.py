"""Consumer groups: Kafka's classic group protocol, for consumers of any age, and the offsets that they commit.

One `GroupCoordinator` serves all groups, whose members it has in memory. An `OffsetStore` keeps what they committed,
in a folder or in memory: a commit is durable before it is answered. In a folder it keeps the last complete generation
of each group as well, before members are told their assignments: behind a restart, SIGKILL included, they go on with
what they have, and no rebalance. Without a folder they are told UNKNOWN_MEMBER_ID then, and join again. What clients
can make either hold is limited (`GroupOptions`).

    store = OffsetStore(options.state, options.groups)
    coordinator = GroupCoordinator(store, catalog, node, options.groups)
    handlers = {**handlers, **coordinator.handlers()}
    coordinator.begin_sessions()  # connections are taken
    ...
    coordinator.close()
    await store.close()
"""

from kafkafmt.serve.groups.coordinator import GroupCoordinator
from kafkafmt.serve.groups.offsets import OffsetsFileError
from kafkafmt.serve.groups.store import OffsetStore

__all__ = ["GroupCoordinator", "OffsetStore", "OffsetsFileError"]
