"""FindCoordinator, DescribeGroups, ListGroups and DeleteGroups: where the groups are, and which there are.

A group is known for its members, by the membership, or for its offsets, by the store: then it is Empty.
"""

from __future__ import annotations

import sqlite3

from kafka import errors
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.admin.acl import ACLOperation
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.metadata.find_coordinator import CoordinatorType

from kafkafmt.serve.groups.group import Group, GroupState
from kafkafmt.serve.groups.member import Error, Member
from kafkafmt.serve.groups.membership import Membership
from kafkafmt.serve.groups.store import OffsetStore, not_available
from kafkafmt.serve.node import Node
from kafkafmt.serve.request import Handler, Message, Request
from kafkafmt.serve.request_memory import ANSWER_ELEMENT_BYTES, ENCODED_COPIES
from kafkafmt.serve.turns import Turns, by_turns

_SEVERAL_KEYS = 4  # the first version of FindCoordinator with more than one key (KIP-699)
_TELLS_ABSENCE = 6  # the first version of DescribeGroups with GROUP_ID_NOT_FOUND (KIP-1043)
_CLASSIC = "classic"  # the group type of all that this coordinator has (KIP-848)
# All that there is to be done with a group.
_GROUP_OPERATIONS = frozenset({ACLOperation.READ, ACLOperation.DELETE, ACLOperation.DESCRIBE})


class AdminRequests:
    """What clients ask to find their group, and administrators about all of them."""

    def __init__(self, membership: Membership, store: OffsetStore, node: Node) -> None:
        self._membership = membership
        self._store = store
        self._node = node

    def handlers(self) -> dict[int, Handler]:
        return {
            FindCoordinatorRequest.API_KEY: self._find_coordinator,
            DescribeGroupsRequest.API_KEY: self._describe,
            ListGroupsRequest.API_KEY: self._list,
            DeleteGroupsRequest.API_KEY: self._delete,
        }

    async def _find_coordinator(self, request: Request) -> Message:
        body, version = request.body, request.version
        error, message = _coordinator_error(body.key_type)
        found = self._node if error is errors.NoError else Node(host="", port=-1, cluster_id="", id=-1)
        response = FindCoordinatorResponse(
            version=version,
            throttle_time_ms=0,
            error_code=error.errno,
            error_message=message,
            node_id=found.id,
            host=found.host,
            port=found.port,
        )
        if version >= _SEVERAL_KEYS:
            response.coordinators = [
                FindCoordinatorResponse.Coordinator(
                    version=version,
                    key=key,
                    node_id=found.id,
                    host=found.host,
                    port=found.port,
                    error_code=error.errno,
                    error_message=message,
                )
                async for key in by_turns(dict.fromkeys(body.coordinator_keys))
            ]
        return response

    async def _describe(self, request: Request) -> Message:
        body, version = request.body, request.version
        groups, turns = [], Turns(request.memory)
        # Once each, so that no request makes too large a response.
        for group_id in dict.fromkeys(body.groups):
            await turns.give(ANSWER_ELEMENT_BYTES)
            error, message, state = await self._state(group_id, version)
            group = self._membership.group(group_id)
            if group is not None:
                await turns.give(sum(map(_described_bytes, group.roster.members.values())))
            groups.append(
                DescribeGroupsResponse.DescribedGroup(
                    version=version,
                    error_code=error.errno,
                    error_message=message,
                    group_id=group_id,
                    group_state=state.value,
                    protocol_type=(None if group is None else group.roster.protocol_type) or "",
                    protocol_data=_stable_protocol(group) or "",
                    members=[] if group is None else _described_members(version, group),
                    authorized_operations=(_GROUP_OPERATIONS if body.include_authorized_operations else None),
                )
            )
        return DescribeGroupsResponse(version=version, throttle_time_ms=0, groups=groups)

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
        turns = Turns(request.memory)
        await turns.give(len(states) * ANSWER_ELEMENT_BYTES)
        return ListGroupsResponse(
            version=version,
            throttle_time_ms=0,
            error_code=error.errno,
            groups=[
                ListGroupsResponse.ListedGroup(
                    version=version,
                    group_id=group_id,
                    protocol_type=protocol_type,
                    group_state=state.value,
                    group_type=_CLASSIC,
                )
                async for group_id, (protocol_type, state) in by_turns(sorted(states.items()))
                if not wanted_states or state.value.lower() in wanted_states
            ],
        )

    async def _delete(self, request: Request) -> Message:
        results = []
        for group_id in dict.fromkeys(request.body.groups_names):
            try:
                error = await self._delete_group(group_id)
            except sqlite3.Error as failure:
                error = not_available(failure)
            results.append(
                DeleteGroupsResponse.DeletableGroupResult(
                    version=request.version, group_id=group_id, error_code=error.errno
                )
            )
        return DeleteGroupsResponse(version=request.version, throttle_time_ms=0, results=results)

    async def _delete_group(self, group_id: str) -> Error:
        has_offsets = await self._store.has_group(group_id)
        group = self._membership.group(group_id)
        if group is None and not has_offsets:
            return errors.GroupIdNotFoundError
        if group is not None and group.roster.members:
            return errors.NonEmptyGroupError
        self._membership.drop(group_id)
        await self._store.delete(group_id, None)
        return errors.NoError


def _coordinator_error(key_type: int) -> tuple[Error, str | None]:
    if key_type == CoordinatorType.GROUP:
        return errors.NoError, None
    if key_type == CoordinatorType.TRANSACTION:
        # Producers give up at this one, and look again forever at COORDINATOR_NOT_AVAILABLE.
        return errors.TransactionalIdAuthorizationFailedError, "This endpoint has no transactions."
    return errors.InvalidRequestError, f"There are no coordinators of type {key_type} here, only of groups."


def _stable_protocol(group: Group | None) -> str | None:
    """What members agreed on; Kafka tells it, with their metadata and assignments, of stable groups alone."""
    return group.protocol_name if group is not None and group.state is GroupState.STABLE else None


def _described_bytes(member: Member) -> int:
    """What a member takes in an answer, as an object and encoded, whatever the group's protocol is."""
    return ANSWER_ELEMENT_BYTES + ENCODED_COPIES * member.size_bytes


def _described_members(version: int, group: Group) -> list[Message]:
    protocol = _stable_protocol(group)
    return [_described_member(version, member, protocol) for member in group.roster.members.values()]


def _described_member(version: int, member: Member, protocol: str | None) -> Message:
    return DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
        version=version,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=f"/{member.client_host}",
        member_metadata=b"" if protocol is None else member.protocols[protocol],
        member_assignment=b"" if protocol is None else member.assignment,
    )
