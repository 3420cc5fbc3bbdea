"""Fetch of versions 0 to 3: records of v2 are converted while they are sent (KIP-283).

The cluster is asked in its newest version. Its response is held, within the memory for requests. What is sent has a
size that is committed before the records are converted, and is converted chunk by chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from kafka import errors
from kafka.protocol.api_key import ApiKey

from _kafkafmt.server.fetching import FetchedPartition, encode_fetch_response
from kafkafmt.convert.fetch_response import FetchResponse, ResponsePart
from kafkafmt.convert.lazy import LazyDownConvertRecords
from kafkafmt.gateway.error_codes import known_code
from kafkafmt.gateway.errors import UpstreamAuthenticationError, UpstreamError
from kafkafmt.gateway.fetch_notes import FetchNote, FetchNotes
from kafkafmt.gateway.leader_fetch import (
    UNKNOWN,
    Answers,
    FetchOptions,
    LeaderFetch,
    PartitionAnswer,
    WantedPartition,
    magic_of,
)
from kafkafmt.server.down_conversion_memory import KeptConversions
from kafkafmt.server.yielding import YieldBudget

if TYPE_CHECKING:
    from kafkafmt.gateway.upstreams import Upstreams
    from kafkafmt.server.batch_work import BatchWork
    from kafkafmt.server.down_conversion_memory import Lease
    from kafkafmt.server.request import Request

# From this version on the whole response has a limit, and consumers rotate partitions (KIP-74).
_FIRST_WITH_MAX_BYTES = 3
# Several leaders are asked for so long at a time, twice as long each time.
_FIRST_SLICE_S, _LONGEST_SLICE_S = 0.025, 0.2
# Seconds after the longest wait in which batches without records are passed over. The next fetch continues there.
_PASSING_S = 5.0


class _Round(NamedTuple):
    """What one request to each of the leaders has found. leaders: the number of these."""

    answers: Answers
    leaders: int


class _Asked:
    """The partitions that one fetch of a client still asks for.

    refused: the answers for partitions that are asked for no longer.
    ahead: those that are asked for from a later offset on, after batches without records, as they are asked for.
    moved: those of `ahead` that this fetch has moved.
    """

    def __init__(
        self, wanted: Sequence[WantedPartition], refused: dict[WantedPartition, PartitionAnswer]
    ) -> None:
        self.refused = refused
        self.ahead: dict[WantedPartition, WantedPartition] = {}
        self.moved: set[WantedPartition] = set()
        self._parts = dict.fromkeys(part for part in wanted if part not in refused)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __iter__(self) -> Iterator[WantedPartition]:
        return iter(self._parts)

    def as_asked(self) -> list[WantedPartition]:
        """Return the partitions with the offsets that are asked for now."""
        return [self.ahead.get(part, part) for part in self._parts] if self.ahead else list(self._parts)

    def as_wanted(
        self, found: dict[WantedPartition, PartitionAnswer]
    ) -> dict[WantedPartition, PartitionAnswer]:
        """Return answers by the partitions as the client wants them."""
        if not self.ahead:
            return found
        wanted = {now: part for part, now in self.ahead.items()}
        return {wanted.get(now, now): answer for now, answer in found.items()}

    def move(self, part: WantedPartition, offset: int) -> None:
        """Ask for a partition from a later offset on."""
        self.ahead[part] = part._replace(offset=offset)
        self.moved.add(part)

    def move_back(self, part: WantedPartition) -> None:
        """Ask for a partition from the client's offset on."""
        del self.ahead[part]
        self.moved.discard(part)

    def refuse(self, part: WantedPartition, answer: PartitionAnswer) -> None:
        """Ask for a partition no longer."""
        self.refused[part] = answer
        self.moved.discard(part)
        del self._parts[part]


class TranslatedFetch:
    """Answers Fetch of old versions for one client."""

    def __init__(self, upstreams: Upstreams, work: BatchWork, options: FetchOptions) -> None:
        self._upstreams = upstreams
        self._options = options
        self._leader = LeaderFetch(upstreams, work, options)
        self._refusals = FetchNotes()  # error codes
        self._passed = FetchNotes()  # offsets after batches without records
        self._last: tuple[str, int] | None = None  # the last partition with records in the newest response

    def configs_changed(self) -> None:
        """Note that the configuration of topics may have changed in the cluster. The next fetch applies it."""
        self._options.policy.forget_answers()

    async def answer(self, request: Request, lease: Lease) -> tuple[FetchResponse, list[int]]:
        """Return the response and the error codes in it. Raises RequestError."""
        wanted = await self._wanted(request)
        in_turn = self._in_turn(request, wanted)
        found = await self._found(request, in_turn)
        if found.others:
            self._note(request, [part for part in in_turn if part in found.others], found.others)
        kept = KeptConversions(lease, self._options.kept_bytes)
        response = self._response(request, wanted, found.empty | found.others, kept)
        return response, [one.error_code for one in found.others.values() if one.error_code]

    def _note(
        self,
        request: Request,
        parts: Sequence[WantedPartition],
        answers: Mapping[WantedPartition, PartitionAnswer],
    ) -> None:
        """Remember which partition is the last one with records, and which ones are refused."""
        with_records = [part for part in parts if answers[part].records is not None]
        if with_records:
            self._last = with_records[-1][:2]
        magic = magic_of(request.version)
        lasting = [part for part in parts if answers[part].is_lasting]
        if lasting:
            self._refusals.add(FetchNote(*part[:3], magic, answers[part].refusal) for part in lasting)

    async def _wanted(self, request: Request) -> list[WantedPartition]:
        """Return the partitions of a request. Each is answered once, as by Kafka."""
        wanted: dict[tuple[str, int], WantedPartition] = {}
        yields = YieldBudget()
        for topic in request.body.topics:
            await yields.checkpoint()
            for one in topic.partitions:
                key = topic.topic, one.partition
                if key not in wanted:
                    max_bytes = self._options.partition_bytes(one.partition_max_bytes)
                    wanted[key] = WantedPartition(*key, one.fetch_offset, max_bytes)
        return list(wanted.values())

    def _in_turn(self, request: Request, wanted: list[WantedPartition]) -> list[WantedPartition]:
        """Return the partitions so that those after the last one with records are first.

        Consumers rotate partitions themselves from the version with a limit for the whole response on (KIP-74).
        """
        if request.version >= _FIRST_WITH_MAX_BYTES or self._last is None:
            return wanted
        keys = [(part.topic, part.partition) for part in wanted]
        first = keys.index(self._last) + 1 if self._last in keys else 0
        return wanted[first:] + wanted[:first]

    async def _found(self, request: Request, wanted: Sequence[WantedPartition]) -> Answers:
        """Return the answers for all partitions. Wait for records as long as the request says.

        Batches without records for this consumer are skipped, also in its next fetch of the same offset.
        Several leaders are asked again and again, each for a short time: a broker without records would let the
        records of others wait. Partitions that are refused are asked for no longer, and the others do not wait then.
        """
        memory, loop = request.memory, asyncio.get_running_loop()
        assert memory is not None
        began_with = memory.taken_bytes
        asked = _Asked(wanted, await self._refused(request.version, wanted))
        waits_ms = request.body.max_wait_ms if request.body.min_bytes > 0 else 0  # as brokers do
        ends_at = loop.time() + max(waits_ms, 0) / 1000
        magic = magic_of(request.version)
        for part in asked if self._passed else ():
            if offset := self._passed.value(*part[:3], magic):
                asked.ahead[part] = part._replace(offset=offset)
        slice_s = 0.0
        while asked:
            found = await self._look(request, asked, ends_at, slice_s)
            if found is not None:
                self._note_passed(asked, found, magic)
                return Answers(found.empty, found.others | asked.refused)
            memory.keep(began_with)  # what was found is asked for again
            slice_s = min(2 * slice_s, _LONGEST_SLICE_S) or _FIRST_SLICE_S
        return Answers({}, asked.refused)

    def _note_passed(self, asked: _Asked, found: Answers, magic: int) -> None:
        """Remember how far partitions were passed over. Forget it for those with an error."""
        if self._passed or asked.moved:
            for part, answer in found.others.items():
                if answer.error_code and not answer.refusal:
                    self._passed.forget(*part[:2])  # its log may be another one
                    asked.moved.discard(part)
        if asked.moved:
            self._passed.add(FetchNote(*part[:3], magic, asked.ahead[part].offset) for part in asked.moved)

    def _is_shorter(self, part: WantedPartition, asked: _Asked, error_code: int) -> bool:
        """Has a log lost what earlier fetches passed over? The client's offset may be in it, and is asked for then."""
        is_out_of_range = error_code == errors.OffsetOutOfRangeError.errno
        return is_out_of_range and part in asked.ahead and self._passed.forget(*part[:2])

    async def _refused(
        self, version: int, wanted: Sequence[WantedPartition]
    ) -> dict[WantedPartition, PartitionAnswer]:
        """Return the answers for partitions with a known refusal."""
        if not self._refusals:
            return {}
        codes: dict[WantedPartition, int] = {}
        yields = YieldBudget()
        for part in wanted:
            await yields.checkpoint()
            if code := self._refusals.value(*part[:3], magic_of(version)):
                codes[part] = code
        too_new = errors.UnsupportedVersionError.errno
        topics = {part.topic for part, code in codes.items() if code == too_new}
        converted = dict(zip(topics, await asyncio.gather(*map(self._converts_now, topics)), strict=True))
        return {
            # Not lasting, as it must not be remembered for longer.
            part: PartitionAnswer(known_code(ApiKey.Fetch, version, code))
            for part, code in codes.items()
            if code != too_new or not converted[part.topic]
        }

    async def _converts_now(self, topic: str) -> bool:
        """Return whether the policy for a refused topic has changed. It has not if the cluster cannot be asked."""
        try:
            return await self._options.policy.converts(topic, self._upstreams)
        except UpstreamAuthenticationError:
            raise
        except UpstreamError:
            return False

    async def _look(self, request: Request, asked: _Asked, ends_at: float, slice_s: float) -> Answers | None:
        """Return the answers for the partitions that are asked for; None if they are not enough yet.

        Those that are passed over are asked for from a later offset on. Those that are now refused are so in `asked`.
        """
        loop, body = asyncio.get_running_loop(), request.body
        left_s = 0.0 if asked.refused else max(ends_at - loop.time(), 0.0)
        done = await self._ask(request, asked.as_asked(), left_s, slice_s)
        found = Answers(asked.as_wanted(done.answers.empty), asked.as_wanted(done.answers.others))
        size = 0
        has_error = has_passed = is_shorter = False
        for part, answer in found.others.items():
            size += answer.source_size
            has_error = has_error or answer.error_code != 0
            if answer.passed is not None:
                asked.move(part, answer.passed)
                has_passed = True
            elif self._is_shorter(part, asked, answer.error_code):
                asked.move_back(part)
                is_shorter = True
            elif answer.refusal:
                asked.refuse(part, answer)
                has_passed = True
        # A single broker has waited as long as it may.
        is_waited = (
            bool(asked.refused) or has_error or loop.time() >= ends_at or (size > 0 and done.leaders == 1)
        )
        is_enough = size >= max(min(body.min_bytes, body.max_bytes), 1)
        is_over = is_waited and (not has_passed or loop.time() >= ends_at + _PASSING_S)
        return found if not is_shorter and (is_enough or not asked or is_over) else None

    async def _ask(
        self, request: Request, wanted: Sequence[WantedPartition], left_s: float, slice_s: float
    ) -> _Round:
        """Ask the leader of each partition. It waits for records as long as is left; one of several for a slice."""
        by_leader = await self._upstreams.by_leader(
            wanted, lambda part: (part.topic, part.partition), request.memory
        )
        answers = Answers({}, {})
        for part, code in by_leader.refused:
            answers.others[part] = PartitionAnswer(known_code(ApiKey.Fetch, request.version, code))
        leaders = len(by_leader.parts)
        waits_s = 0.0 if answers.others else left_s if leaders == 1 else min(left_s, slice_s)
        asked = [
            self._leader.ask(upstream, request, parts, waits_s, leaders)
            for upstream, parts in by_leader.parts
        ]
        for of_one in await asyncio.gather(*asked):
            answers.empty.update(of_one.empty)
            answers.others.update(of_one.others)
        return _Round(answers, leaders)

    def _response(
        self,
        request: Request,
        wanted: Sequence[WantedPartition],
        found: Mapping[WantedPartition, PartitionAnswer],
        kept: KeptConversions,
    ) -> FetchResponse:
        """Return the response: the partitions in the order of the request, those of a topic together."""
        topics: dict[str, list[FetchedPartition]] = {}
        converted: dict[str, list[LazyDownConvertRecords]] = {}
        for part in wanted:
            answer = found[part]
            topics.setdefault(part.topic, []).append(
                FetchedPartition(
                    part.partition,
                    answer.error_code,
                    answer.high_watermark,
                    UNKNOWN,
                    UNKNOWN,
                    None,
                    answer.size,
                )
            )
            if answer.records is not None:
                converted.setdefault(part.topic, []).append(answer.records)
        pieces = encode_fetch_response(
            request.version,
            request.correlation_id,
            [(topic.encode(), partitions) for topic, partitions in topics.items()],
        )
        parts: list[ResponsePart] = [pieces[0]]
        sent = chain.from_iterable(converted.get(topic, ()) for topic in topics)
        for piece, records in zip(pieces[1:], sent, strict=True):
            kept.add(records)
            parts += (records, piece)
        return FetchResponse(parts)
