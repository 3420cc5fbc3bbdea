"""FindCoordinator, DescribeGroups, ListGroups and DeleteGroups.

A group exists if it has members, in the membership, or offsets, in the store. With offsets alone its state is Empty.
"""

from __future__ import annotations

import sqlite3

from kafka import errors
from kafka.protocol.admin import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
)
from kafka.protocol.admin.acl import ACLOperation
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import FindCoordinatorResponse
from kafka.protocol.metadata.find_coordinator import CoordinatorType

from kafkafmt.serve.groups.group import Group, GroupState
from kafkafmt.serve.groups.member import Error, Member
from kafkafmt.serve.groups.membership import Membership
from kafkafmt.serve.groups.store import OffsetStore, not_available
from kafkafmt.server.node import Node
from kafkafmt.server.request import Handler, Message, Request
from kafkafmt.server.request_memory import ANSWER_ELEMENT_BYTES, ENCODED_COPIES
from kafkafmt.server.yielding import YieldBudget, yielding_between

_SEVERAL_KEYS = 4  # the first version of FindCoordinator with more than one key (KIP-699)
_TELLS_ABSENCE = 6  # the first version of DescribeGroups with GROUP_ID_NOT_FOUND (KIP-1043)
_CLASSIC = "classic"  # the group type of all that this coordinator has (KIP-848)
# All operations on a group.
_GROUP_OPERATIONS = frozenset({ACLOperation.READ, ACLOperation.DELETE, ACLOperation.DESCRIBE})


class AdminRequests:
    """Answers clients that look for their coordinator, and administrators."""

    def __init__(self, membership: Membership, store: OffsetStore, node: Node) -> None:
        self._membership = membership
        self._store = store
        self._node = node

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by API key."""
        return {
            ApiKey.FindCoordinator: self._find_coordinator,
            ApiKey.DescribeGroups: self._describe,
            ApiKey.ListGroups: self._list,
            ApiKey.DeleteGroups: self._delete,
        }

    async def _find_coordinator(self, request: Request) -> Message:
        body, version = request.body, request.version
        error, message = _coordinator_error(body.key_type)
        found = self._node if error is errors.NoError else Node(host="", port=-1, cluster_id="", id=-1)
        place = {
            "node_id": found.id,
            "host": found.host,
            "port": found.port,
            "error_code": error.errno,
            "error_message": message,
        }
        if version < _SEVERAL_KEYS:
            return FindCoordinatorResponse(version=version, **place)
        return FindCoordinatorResponse(
            version=version,
            coordinators=[
                FindCoordinatorResponse.Coordinator(key=key, **place)
                async for key in yielding_between(dict.fromkeys(body.coordinator_keys))
            ],
        )

    async def _describe(self, request: Request) -> Message:
        body, version = request.body, request.version
        groups, yields = [], YieldBudget(request.memory)
        # Each group once: repetition must not make the response larger.
        for group_id in dict.fromkeys(body.groups):
            await yields.checkpoint(ANSWER_ELEMENT_BYTES)
            error, message, state = await self._state(group_id, version)
            group = self._membership.group(group_id)
            if group is not None:
                await yields.checkpoint(sum(map(_described_bytes, group.roster.members.values())))
            groups.append(
                DescribeGroupsResponse.DescribedGroup(
                    error_code=error.errno,
                    error_message=message,
                    group_id=group_id,
                    group_state=state.value,
                    protocol_type=(None if group is None else group.roster.protocol_type) or "",
                    protocol_data=_stable_protocol(group) or "",
                    members=[] if group is None else _described_members(group),
                    authorized_operations=(_GROUP_OPERATIONS if body.include_authorized_operations else None),
                )
            )
        return DescribeGroupsResponse(version=version, groups=groups)

    async def _state(self, group_id: str, version: int) -> tuple[Error, str | None, GroupState]:
        group = self._membership.group(group_id)
        if group is not None:
            return errors.NoError, None, group.state
        try:
            if await self._store.has_group(group_id):
                return errors.NoError, None, GroupState.EMPTY
        except sqlite3.Error as failure:
            return not_available(failure), None, GroupState.DEAD
        if version >= _TELLS_ABSENCE:
            return errors.GroupIdNotFoundError, f"Group {group_id} not found.", GroupState.DEAD
        return errors.NoError, None, GroupState.DEAD

    async def _list(self, request: Request) -> Message:
        body, version = request.body, request.version
        error = errors.NoError
        states = {}
        try:
            states = dict.fromkeys(await self._store.group_ids(), ("", GroupState.EMPTY))
        except sqlite3.Error as failure:
            error = not_available(failure)
        for group_id, group in self._membership.groups().items():
            states[group_id] = (group.roster.protocol_type or "", group.state)
        wanted_states = {state.lower() for state in body.states_filter or ()}
        wanted_types = {group_type.lower() for group_type in body.types_filter or ()}
        if wanted_types and _CLASSIC not in wanted_types:
            states = {}
        yields = YieldBudget(request.memory)
        await yields.checkpoint(len(states) * ANSWER_ELEMENT_BYTES)
        return ListGroupsResponse(
            version=version,
            error_code=error.errno,
            groups=[
                ListGroupsResponse.ListedGroup(
                    group_id=group_id,
                    protocol_type=protocol_type,
                    group_state=state.value,
                    group_type=_CLASSIC,
                )
                async for group_id, (protocol_type, state) in yielding_between(sorted(states.items()))
                if not wanted_states or state.value.lower() in wanted_states
            ],
        )

    async def _delete(self, request: Request) -> Message:
        group_ids = list(dict.fromkeys(request.body.groups_names))
        found = await self._delete_groups(group_ids)
        return DeleteGroupsResponse(
            version=request.version,
            results=[
                DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=found[group_id].errno)
                async for group_id in yielding_between(group_ids)
            ],
        )

    async def _delete_groups(self, group_ids: list[str]) -> dict[str, Error]:
        """Delete the groups that may be deleted, in one transaction. Return the error of each group, or NoError."""
        found: dict[str, Error] = {}
        deleted: list[str] = []
        try:
            with_offsets = await self._store.with_offsets(group_ids)
            for group_id in group_ids:
                group = self._membership.group(group_id)
                if group is None and group_id not in with_offsets:
                    found[group_id] = errors.GroupIdNotFoundError
                elif group is not None and group.roster.members:
                    found[group_id] = errors.NonEmptyGroupError
                else:
                    self._membership.drop(group_id)
                    deleted.append(group_id)
                    found[group_id] = errors.NoError
            if deleted:
                await self._store.delete_groups(deleted)
        except sqlite3.Error as failure:
            error = not_available(failure)
            return {**dict.fromkeys(group_ids, error), **found, **dict.fromkeys(deleted, error)}
        return found


def _coordinator_error(key_type: int) -> tuple[Error, str | None]:
    if key_type == CoordinatorType.GROUP:
        return errors.NoError, None
    if key_type == CoordinatorType.TRANSACTION:
        # Producers give up after this error. After COORDINATOR_NOT_AVAILABLE they would look again forever.
        return errors.TransactionalIdAuthorizationFailedError, "This endpoint has no transactions."
    return errors.InvalidRequestError, f"There are no coordinators of type {key_type} here, only of groups."


def _stable_protocol(group: Group | None) -> str | None:
    """Return the protocol of a stable group; None for others, whose metadata and assignments Kafka hides as well."""
    return group.protocol_name if group is not None and group.state is GroupState.STABLE else None


def _described_bytes(member: Member) -> int:
    """Return the bytes that a member takes in an answer, as an object and encoded, with any protocol."""
    return ANSWER_ELEMENT_BYTES + ENCODED_COPIES * member.size_bytes


def _described_members(group: Group) -> list[Message]:
    protocol = _stable_protocol(group)
    return [
        DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=f"/{member.client_host}",
            member_metadata=b"" if protocol is None else member.protocols[protocol],
            member_assignment=b"" if protocol is None else member.assignment,
        )
        for member in group.roster.members.values()
    ]
