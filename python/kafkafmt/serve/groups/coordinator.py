"""The coordinator of all groups: its request handlers, over the membership in memory and the store."""

from __future__ import annotations

from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.groups.admin_requests import AdminRequests
from kafkafmt.serve.groups.member_requests import MemberRequests
from kafkafmt.serve.groups.membership import Membership
from kafkafmt.serve.groups.offset_requests import OffsetRequests
from kafkafmt.serve.groups.store import OffsetStore
from kafkafmt.serve.options import GroupOptions
from kafkafmt.server.node import Node
from kafkafmt.server.request import Handler


class GroupCoordinator:
    """One coordinator for all groups. All its handlers must be called on one event loop.

    A handler that waits for other members, as JoinGroup's does, may be cancelled when its client has disconnected.
    node: the answer to FindCoordinator. store: the caller closes it after the coordinator. Groups continue in the
    generations that it has; raises OffsetsFileError if one of them is invalid.
    """

    def __init__(self, store: OffsetStore, catalog: Catalog, node: Node, options: GroupOptions) -> None:
        self._membership = Membership(store, options)
        self._membership.restore()
        self._requests = (
            MemberRequests(self._membership),
            OffsetRequests(self._membership, store, catalog, max_metadata_chars=options.max_metadata_chars),
            AdminRequests(self._membership, store, node),
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers, by API key, of FindCoordinator and the APIs of groups and their offsets."""
        return {key: handler for each in self._requests for key, handler in each.handlers().items()}

    def begin_sessions(self) -> None:
        """Start the sessions of the members before a restart. Call this once connections are accepted."""
        self._membership.begin_sessions()

    def close(self) -> None:
        """Answer all waiting members, so that they look for a coordinator again, and accept no more members."""
        self._membership.close()
