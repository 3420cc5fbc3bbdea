"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: from kafka-python's messages to the membership, and back."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from kafka import errors
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

from kafkafmt.serve.groups.member import (
    Join,
    JoinResult,
    MemberIdentity,
    MemberMetadata,
    Sync,
    SyncResult,
)
from kafkafmt.serve.groups.membership import Membership
from kafkafmt.server.request import Handler, Message, Request
from kafkafmt.server.request_memory import ANSWER_ELEMENT_BYTES, ENCODED_COPIES
from kafkafmt.server.yielding import yielding_between

_NEEDS_MEMBER_ID = 4  # the first version of JoinGroup whose clients ask for a member id first (KIP-394)
_CAN_SKIP_ASSIGNMENT = 9
_NULLABLE_PROTOCOL_NAME = 7
_NAMES_PROTOCOL = 5  # the first version of SyncGroup that names the protocol (KIP-559)
_LEAVES_TOGETHER = 3  # the first version of LeaveGroup with several members


class MemberRequests:
    """Answers the requests of group members."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by API key."""
        return {
            ApiKey.JoinGroup: self._join,
            ApiKey.SyncGroup: self._sync,
            ApiKey.Heartbeat: self._heartbeat,
            ApiKey.LeaveGroup: self._leave,
        }

    async def _join(self, request: Request) -> Message:
        join, group_id = _join_of(request), request.body.group_id
        request.forget_body()  # the groups count what they keep of it
        if group_id:
            result = await self._membership.join(group_id, join)
        else:
            result = join.refused(errors.InvalidGroupIdError)
        if request.memory is not None:
            await request.memory.take(sum(map(_answer_bytes, result.members)))
        return _join_response(request.version, result)

    async def _sync(self, request: Request) -> Message:
        body = request.body
        sync = Sync(
            _identity(body),
            {each.member_id: each.assignment for each in body.assignments},
            body.protocol_type,
            body.protocol_name,
        )
        is_vague = body.protocol_type is None or body.protocol_name is None
        if not body.group_id:
            result = sync.refused(errors.InvalidGroupIdError)
        elif request.version >= _NAMES_PROTOCOL and is_vague:
            result = sync.refused(errors.InconsistentGroupProtocolError)
        else:
            group_id = body.group_id
            del body
            request.forget_body()
            result = await self._membership.sync(group_id, sync)
        if request.memory is not None:
            await request.memory.take(ENCODED_COPIES * len(result.assignment))
        return _sync_response(request.version, result)

    async def _heartbeat(self, request: Request) -> Message:
        group_id: str = request.body.group_id
        error = errors.InvalidGroupIdError
        if group_id:
            error = self._membership.heartbeat(group_id, _identity(request.body))
        return HeartbeatResponse(version=request.version, error_code=error.errno)

    async def _leave(self, request: Request) -> Message:
        body = request.body
        response = LeaveGroupResponse(version=request.version)
        if not body.group_id:
            response.error_code = errors.InvalidGroupIdError.errno
        elif request.version < _LEAVES_TOGETHER:
            response.error_code = self._membership.leave(body.group_id, body.member_id, None).errno
        else:
            response.members = [
                LeaveGroupResponse.MemberResponse(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=self._membership.leave(
                        body.group_id, each.member_id, each.group_instance_id
                    ).errno,
                )
                async for each in yielding_between(body.members)
            ]
        return response


def _join_of(request: Request) -> Join:
    body = request.body
    client_id = request.client_id or ""
    # Version 0 has no rebalance timeout: the session timeout is used for both.
    rebalance_timeout_ms = body.rebalance_timeout_ms if request.version else body.session_timeout_ms
    return Join(
        member_id=body.member_id,
        new_member_id=f"{body.group_instance_id or client_id}-{uuid4()}",
        protocol_type=body.protocol_type,
        protocols={each.name: each.metadata for each in body.protocols},
        session_timeout=body.session_timeout_ms / 1000,
        rebalance_timeout=max(rebalance_timeout_ms, 0) / 1000,
        instance_id=body.group_instance_id,
        client_id=client_id,
        client_host=request.client_host,
        needs_member_id=request.version >= _NEEDS_MEMBER_ID,
        can_skip_assignment=request.version >= _CAN_SKIP_ASSIGNMENT,
    )


def _answer_bytes(member: MemberMetadata) -> int:
    """Return the bytes that a member takes in the answer to its leader."""
    return ANSWER_ELEMENT_BYTES + ENCODED_COPIES * len(member.metadata)


def _join_response(version: int, result: JoinResult) -> Message:
    no_protocol = None if version >= _NULLABLE_PROTOCOL_NAME else ""
    return JoinGroupResponse(
        version=version,
        error_code=result.error.errno,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=no_protocol if result.protocol_name is None else result.protocol_name,
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata,
            )
            for each in result.members
        ],
    )


def _sync_response(version: int, result: SyncResult) -> Message:
    return SyncGroupResponse(
        version=version,
        error_code=result.error.errno,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


def _identity(body: Any) -> MemberIdentity:
    return MemberIdentity(body.member_id, body.generation_id, body.group_instance_id)
