"""When a sandbox dies: what is made again, what is compared, what is told, and what it costs the agent."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, override

import pytest
from mcp.client._memory import InMemoryTransport
from mcp.server import MCPServer
from mcp_types import CallToolResult, TextContent, Tool

from seatrial_api.clock import Deadline
from seatrial_api.errors import TransientError
from seatrial_api.spec.rollout import ReplaySpec
from seatrial_rollout.harness.errors import (
    CallLostError,
    HarnessError,
    ReplayDivergedError,
    SandboxFailedError,
    ToolServerError,
)
from seatrial_rollout.harness.replay.lifeline import Lifeline, ReplayLimits
from seatrial_rollout.harness.tool_server import Endpoint, Offer, ToolServer, await_offers
from seatrial_rollout.harness.trial_clock import TrialClock
from seatrial_sandbox.errors import SandboxDiedError, SandboxLimitError, SandboxStartError, SandboxStateError
from tests.clocks import HeldClock

CLAIM_SECONDS = 40.0


@dataclass
class World:
    """A sandbox that holds a list of words, and dies when told to: a `Restorable`."""

    clock: HeldClock = field(default_factory=HeldClock)
    words: list[str] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """Calls that were made, in all sandboxes."""
    is_dead: bool = False
    deaths: list[Exception] = field(default_factory=list)
    """What befalls the next sandboxes as soon as they are asked for."""
    can_save: bool | Exception = True
    renewals: int = 0

    async def begin_saving(self) -> None:
        """The first state is empty."""

    async def save(self, *, is_final: bool = False) -> bool:
        """Keep the words."""
        self.clock.advance(5)
        if isinstance(self.can_save, Exception):
            raise self.can_save
        if self.can_save or is_final:
            self.saved = list(self.words)
        return self.can_save or is_final

    async def renew(self) -> None:
        """Begin with the words that were kept."""
        self.renewals += 1
        self.clock.advance(CLAIM_SECONDS)
        self.is_dead = bool(self.deaths) and isinstance(self.deaths[0], TransientError)
        if self.deaths:
            raise self.deaths.pop(0)
        self.words = list(self.saved)

    async def is_alive(self) -> bool:
        """Whether it was not killed."""
        return not self.is_dead

    def say(self, word: str) -> str:
        """Add a word."""
        self.calls.append(word)
        self.clock.advance(1)
        self.words.append(word)
        return " ".join(self.words)


class WordServer(ToolServer):
    """Answers from a world, or finds it dead, as a server in a sandbox does."""

    def __init__(self, offer: Offer, world: World) -> None:
        super().__init__(offer, asyncio.TaskGroup())
        self.world = world
        self.before: Callable[[str], object] = lambda _: None
        """What happens as a call begins."""

    @override
    async def call(self, tool: Tool, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        self.before(arguments["word"])
        if self.world.is_dead:
            raise SandboxFailedError("it is gone") from SandboxDiedError("it is gone")
        return CallToolResult(content=[TextContent(type="text", text=self.world.say(arguments["word"]))])


def endpoint(name: str = "words", tools: tuple[str, ...] = ("say",), *, is_in_sandbox: bool = True) -> Endpoint:
    server = MCPServer(name)
    for tool in tools:
        server.add_tool(lambda word: word, name=tool)
    return Endpoint(name, lambda: InMemoryTransport(server), is_in_sandbox)


@dataclass
class Trial:
    """A lifeline and what it holds on to."""

    world: World
    server: WordServer
    lifeline: Lifeline
    clock: TrialClock

    async def say(self, *words: str, server: ToolServer | None = None) -> str:
        """Say words in calls of their own; the last answer."""
        answer = ""
        for word in words:
            told = server or self.server
            result = await self.lifeline.call(told, told.tools[0], {"word": word}, 20)
            (block,) = result.content
            answer = block.text if isinstance(block, TextContent) else ""
        return answer


async def trial(spec: ReplaySpec | None = None, *, at: Endpoint | None = None) -> Trial:
    world = World()
    clock = TrialClock(1000, world.clock)
    clock.start()
    (offer,) = await await_offers([at or endpoint()], Deadline.after(30))
    server = WordServer(offer, world)
    limits = ReplayLimits(ready_seconds=30, call_seconds=20)
    lifeline = Lifeline(world, [server], clock, spec or ReplaySpec(snapshot_every_calls=2), limits)
    return Trial(world, server, lifeline, clock)


async def test_the_tail_and_the_lost_call_are_made_again_and_nothing_else() -> None:
    it = await trial()
    await it.say("a", "b", "c")
    it.world.is_dead = True
    assert await it.say("d") == "a b c d"
    assert it.world.saved == ["a", "b", "c", "d"]
    assert it.world.calls == ["a", "b", "c", "c", "d"]
    assert it.lifeline.num_restores == 1


async def test_the_agent_is_charged_for_nothing_but_the_calls_that_count() -> None:
    it = await trial()
    await it.say("a", "b", "c")
    assert it.clock.charged == 3

    def die_after_a_while(word: str) -> None:
        if word == "d" and it.world.renewals == 0:
            it.world.clock.advance(17)
            it.world.is_dead = True

    it.server.before = die_after_a_while
    await it.say("d")
    assert it.clock.charged == 4
    assert it.world.clock.now() > 17 + CLAIM_SECONDS


async def test_a_sandbox_that_dies_while_it_is_restored_is_replaced_too() -> None:
    it = await trial()
    await it.say("a")
    it.world.is_dead = True
    it.world.deaths = [SandboxStartError("none to be had"), SandboxDiedError("gone again")]
    assert await it.say("b") == "a b"
    assert it.lifeline.num_restores == it.world.renewals == 3


async def test_a_sandbox_that_dies_under_the_replay_is_replaced_too() -> None:
    it = await trial(ReplaySpec(snapshot_every_calls=0))
    await it.say("a", "b")

    def die_once(word: str) -> None:
        it.world.is_dead = it.world.is_dead or (word == "b" and it.world.renewals == 1)

    it.server.before = die_once
    it.world.is_dead = True
    assert await it.say("c") == "a b c"
    assert it.world.calls == ["a", "b", "a", "a", "b", "c"]
    assert it.lifeline.num_restores == 2


@pytest.mark.parametrize("most", [0, 2])
async def test_a_trial_is_restored_so_often_and_no_more(most: int) -> None:
    it = await trial(ReplaySpec(max_restores=most))
    it.world.is_dead = True
    it.world.deaths = [SandboxDiedError("gone again")] * 5
    with pytest.raises(SandboxFailedError, match=f"gone.* {most} restored sandboxes"):
        await it.say("a")
    assert it.world.renewals == it.lifeline.num_restores == most


async def test_another_answer_than_before_is_a_divergence_and_names_the_call() -> None:
    it = await trial()
    await it.say("a", "b", "c")
    it.world.saved = ["a", "x"]
    it.world.is_dead = True
    with pytest.raises(ReplayDivergedError) as caught:
        await it.say("d")
    assert "call 3, say({'word': 'c'}) of server words differs" in str(caught.value)
    assert "a b c" in str(caught.value)
    assert "a x c" in str(caught.value)
    assert "d" not in it.world.calls


async def test_a_call_that_is_not_answered_any_more_is_a_divergence() -> None:
    it = await trial()
    await it.say("a")

    def hang(word: str) -> None:
        if word == "a":
            raise TimeoutError

    it.server.before = hang
    it.world.is_dead = True
    with pytest.raises(ReplayDivergedError, match=r"call 1, .*: it was answered, and now is not within 20 s"):
        await it.say("b")


async def test_other_tools_than_before_are_a_divergence() -> None:
    offered = [endpoint(), endpoint(), endpoint(tools=("say", "shout"))]
    changing = Endpoint("words", lambda: offered.pop(0).open_transport())
    it = await trial(at=changing)
    it.world.is_dead = True
    await it.say("a")
    it.world.is_dead = True
    with pytest.raises(ReplayDivergedError, match="MCP server words differs: it offers other tools now"):
        await it.say("b")


@pytest.mark.parametrize("obstacle", [False, SandboxLimitError("too much"), SandboxDiedError("gone"), OSError("full")])
async def test_without_a_snapshot_there_is_only_more_to_be_made_again(obstacle: bool | Exception) -> None:
    it = await trial()
    it.world.can_save = obstacle
    await it.say("a", "b", "c")
    it.world.is_dead = True
    assert await it.say("d") == "a b c d"
    assert it.world.calls == ["a", "b", "c", "a", "b", "c", "d"]


async def test_a_snapshot_that_cannot_be_put_back_ends_the_trial() -> None:
    it = await trial()
    it.world.is_dead = True
    it.world.deaths = [SandboxStateError("2 contents are in no archive")]
    with pytest.raises(SandboxFailedError, match="cannot be restored: 2 contents are in no archive"):
        await it.say("a")
    assert it.lifeline.num_restores == 1


async def test_a_call_of_which_nobody_knows_whether_it_ran_is_made_in_a_world_where_it_did_not() -> None:
    it = await trial()
    await it.say("a")

    def lose_the_answer(word: str) -> None:
        if word == "b" and it.world.renewals == 0:
            it.world.say(word)
            raise CallLostError(server="words", problem="the session died while say ran")

    it.server.before = lose_the_answer
    assert await it.say("b") == "a b"
    assert it.world.calls == ["a", "b", "a", "b"]


async def test_a_server_that_dies_of_every_try_of_a_call_is_to_blame_itself() -> None:
    it = await trial()

    def die(_: str) -> None:
        raise CallLostError(server="words", problem="the session died while say ran")

    it.server.before = die
    with pytest.raises(ToolServerError, match="the session died while say ran"):
        await it.say("a")
    assert it.world.renewals == 3


@pytest.mark.parametrize("failure", [ToolServerError(server="words", problem="broke"), HarnessError("a bug")])
async def test_what_fails_in_a_sandbox_that_lives_is_no_death(failure: HarnessError) -> None:
    it = await trial()

    def fail(_: str) -> None:
        raise failure

    it.server.before = fail
    with pytest.raises(type(failure), match=str(failure)):
        await it.say("a")
    assert it.world.renewals == 0


async def test_a_tool_server_that_fails_in_a_dead_sandbox_is_a_death() -> None:
    it = await trial()

    def fail_in_the_dead(_: str) -> None:
        if it.world.renewals == 0:
            it.world.is_dead = True
            raise ToolServerError(server="words", problem="cannot be reached")

    it.server.before = fail_in_the_dead
    assert await it.say("a") == "a"


async def test_servers_outside_of_the_sandbox_are_asked_once() -> None:
    it = await trial()
    (offer,) = await await_offers([endpoint("outside", is_in_sandbox=False)], Deadline.after(30))
    outside = WordServer(offer, World())
    it.lifeline.servers = [it.server, outside]
    await it.say("a")
    await it.say("bought", server=outside)
    it.world.is_dead = True
    assert await it.say("b") == "a b"
    assert outside.world.calls == ["bought"]


async def test_what_a_finished_agent_left_can_be_had_again_in_another_sandbox() -> None:
    it = await trial()
    await it.say("a", "b", "c")
    it.world.can_save = False  # something runs still
    await it.lifeline.finish()
    assert not await it.lifeline.bring_back_work()  # it lives
    it.world.is_dead = True
    it.world.deaths = [SandboxDiedError("gone again")]
    assert await it.lifeline.bring_back_work()
    assert it.world.words == ["a", "b", "c"]
    assert it.world.calls == ["a", "b", "c"]
    assert it.lifeline.num_restores == 2
    it.world.is_dead = True
    assert await it.lifeline.bring_back_work()
    it.world.is_dead = True
    assert not await it.lifeline.bring_back_work()


async def test_work_that_was_not_kept_cannot_be_had_again() -> None:
    it = await trial()
    await it.say("a")
    it.world.can_save = SandboxLimitError("too much")
    await it.lifeline.finish()
    it.world.is_dead = True
    assert not await it.lifeline.bring_back_work()
    assert it.world.renewals == 0
