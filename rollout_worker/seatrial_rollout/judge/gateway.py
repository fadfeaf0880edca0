"""The judge's door: OpenAI chat completions for whoever holds a verifier's token, and nothing for anybody else."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import aiohttp
from aiohttp import web

from seatrial_api.clock import Deadline
from seatrial_api.judge_token import JudgeClaims
from seatrial_api.spec.judge import JudgeSpec
from seatrial_rollout.judge import wire
from seatrial_rollout.judge.audit import AuditLog, Ending, Record
from seatrial_rollout.judge.budget import NOTHING, Ledger, Usage
from seatrial_rollout.judge.cache import Cache, question_hash
from seatrial_rollout.judge.dispatcher import Dispatcher, Question
from seatrial_rollout.judge.errors import JudgeError, NotAllowedError, NoVerdictError, OverBudgetError, RefusedError
from seatrial_rollout.judge.keys import Ring
from seatrial_rollout.judge.tokens import check
from seatrial_rollout.judge.wire import COMPLETIONS, MODELS, VERIFICATION, Answer

_MAX_BODY_BYTES = 16 * 1024**2
_ANSWER_MARGIN = 0.05
"""Share of the time left to a verification in which it has to be told that there is no answer."""

_ENDINGS: Mapping[type[JudgeError], Ending] = {
    NoVerdictError: Ending.NO_VERDICT,
    OverBudgetError: Ending.OVER_BUDGET,
    RefusedError: Ending.REFUSED,
    NotAllowedError: Ending.NOT_ALLOWED,
}


@dataclass(slots=True)
class _Verification:
    """What is known of one verification's questions."""

    answered: int = 0
    unanswered: dict[str, str] = field(default_factory=dict)
    """By the question's hash why it has no answer, until it is asked again with success. A client that did not wait for
    one has none either."""


class Gateway:
    """Serves one run.

        question ─▶ token ─▶ cache ─▶ budget ─▶ dispatcher ─▶ provider
                                                      └─ the next key, again, until the deadline

    Equal questions at the same time are asked once. A client that hangs up does not end its question: the answer is
    there when it asks again.
    """

    def __init__(
        self, spec: JudgeSpec, rings: Mapping[str, Ring], *, run: str, public_pem: str, audit: AuditLog
    ) -> None:
        """Make a gateway that does not listen yet.

        Args:
            spec: Models, limits and budgets.
            rings: The keys that serve each model.
            run: Whose tokens are taken.
            public_pem: What they are checked with.
            audit: Told of every question.
        """
        self._spec = spec
        self._rings = rings
        self._run = run
        self._public_pem = public_pem
        self._audit = audit
        self._ledger = Ledger(spec.run_budget)
        self._cache: Cache[Answer] = Cache(spec.cache_entries)
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._verifications: defaultdict[str, _Verification] = defaultdict(_Verification)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._started_at = time.time()

    @property
    def used(self) -> Usage:
        """What the run has used up."""
        return self._ledger.run.used

    async def start(self, host: str, port: int = 0) -> int:
        """Listen, and return the port; what earlier attempts of the run have used up is read from the log."""
        self._ledger.run.used = await asyncio.to_thread(self._audit.usage)
        unbounded = aiohttp.TCPConnector(limit=0)  # the keys' limits are the bound
        self._session = aiohttp.ClientSession(connector=unbounded, timeout=aiohttp.ClientTimeout(total=None))
        dispatcher = Dispatcher(self._rings, self._spec.retries, self._session)
        app = web.Application(middlewares=[self._tell_errors], client_max_size=_MAX_BODY_BYTES)
        app.router.add_post(COMPLETIONS, partial(self._complete, dispatcher))
        app.router.add_get(MODELS, self._models)
        app.router.add_get(VERIFICATION, self._verification)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, backlog=4096, reuse_address=True).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stop listening; questions under way are dropped."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()
        self._audit.close()

    async def _complete(self, dispatcher: Dispatcher, request: web.Request) -> web.Response:
        claims = self._check(request)
        try:
            body = json.loads(await request.read())
        except ValueError as exc:
            return _refusal(400, f"the question is no JSON: {exc}", "invalid_request_error")
        problem = wire.fault(body) if isinstance(body, dict) else "the question is no JSON object"
        if not problem and body["model"] not in self._rings:
            problem = f"there is no judge model {body['model']!r}, only {', '.join(self._rings)}"
        if problem:
            return _refusal(400, problem, "invalid_request_error")
        answer = await self._answer(claims, body, dispatcher)
        return web.json_response(answer.body)

    async def _answer(self, claims: JudgeClaims, body: dict[str, Any], dispatcher: Dispatcher) -> Answer:
        """An answer, and an entry in the log whatever happens."""
        left = (claims.expires_at - time.time()) * (1 - _ANSWER_MARGIN)
        deadline = Deadline.after(min(left, self._spec.retries.timeout_seconds))
        question = Question(body, deadline, self._expected_usage(body))
        hashed = question_hash(body)
        record = Record(trial=claims.trial, model=question.model, question=hashed)
        verification = self._verifications[claims.verification]
        verification.unanswered[hashed] = "it is still under way"
        try:
            answer, usage = await self._answer_once(claims, hashed, question, dispatcher)
        except JudgeError as exc:
            record = replace(record, ending=_ENDINGS[type(exc)], detail=str(exc))
            if isinstance(exc, RefusedError):
                verification.unanswered.pop(hashed, None)  # what comes of it is the script's own business
            else:
                verification.unanswered[hashed] = str(exc)
            raise
        else:
            ending = Ending.ANSWERED if usage.requests else Ending.CACHED
            record = replace(record, ending=ending, answer=answer.text, usage=usage)
            verification.answered += 1
            verification.unanswered.pop(hashed, None)
            return answer
        finally:
            sends = [asdict(sent) for sent in question.sends]
            self._audit.write(replace(record, sends=sends, body=body if self._spec.log_questions else None))

    async def _answer_once(
        self, claims: JudgeClaims, hashed: str, question: Question, dispatcher: Dispatcher
    ) -> tuple[Answer, Usage]:
        """An answer, and what was used up for it: nothing if it was known."""
        async with self._alone(hashed, question.deadline):
            if (known := self._cache.get(hashed)) is not None:
                return known, NOTHING
            with self._ledger.reserved(claims.verification, claims.budget, question.expected) as reservation:
                answer, reservation.usage = await dispatcher.answer(question)
            self._cache.put(hashed, answer)
            return answer, reservation.usage

    @asynccontextmanager
    async def _alone(self, hashed: str, deadline: Deadline) -> AsyncIterator[None]:
        """Keep equal questions from being asked at the same time, if answers are kept at all."""
        if self._spec.cache_entries == 0:
            yield
            return
        lock = self._asking.setdefault(hashed, asyncio.Lock())
        try:
            async with asyncio.timeout(deadline.remaining):
                await lock.acquire()
        except TimeoutError:
            raise NoVerdictError("the same question was under way and had no answer in time") from None
        try:
            yield
        finally:
            lock.release()

    def _expected_usage(self, body: Mapping[str, Any]) -> Usage:
        """What a question may cost: its estimated length, a whole answer, the dearest provider."""
        tokens = wire.expected_prompt_tokens(body), wire.completion_bound(body)
        models = [key.models[body["model"]] for key in self._rings[body["model"]].keys]
        return max((Usage.priced(model, *tokens) for model in models), key=lambda usage: usage.dollars)

    async def _models(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self._rings]})

    async def _verification(self, request: web.Request) -> web.Response:
        known = self._verifications[self._check(request).verification]
        return web.json_response(
            {
                "answered": known.answered,
                "unanswered": list(known.unanswered.values()),
                "gateway_started_at": self._started_at,
            }
        )

    def _check(self, request: web.Request) -> JudgeClaims:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        return check(token if kind == "Bearer" else "", self._public_pem, self._run)

    @web.middleware
    async def _tell_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except RefusedError as exc:
            return web.Response(text=exc.body, status=exc.provider_status, content_type="application/json")
        except NotAllowedError as exc:
            self._audit.write(Record(ending=Ending.NOT_ALLOWED, detail=f"{request.remote}: {exc}"))
            return _refusal(exc.status, str(exc), "authentication_error")
        except OverBudgetError as exc:
            return _refusal(exc.status, str(exc), "insufficient_quota")
        except JudgeError as exc:
            return _refusal(exc.status, str(exc), "judge_unavailable")


def _refusal(status: int, message: str, kind: str) -> web.Response:
    # The gateway has tried all that helps: clients of OpenAI and Anthropic heed that they need not.
    headers = {"x-should-retry": "false"}
    return web.json_response(
        {"error": {"message": message, "type": kind, "code": None}}, status=status, headers=headers
    )
