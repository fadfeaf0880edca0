"""What a trial's process asks the gateway itself."""

import time
import uuid
from dataclasses import dataclass
from typing import Any

import aiohttp

from seatrial_api.clock import SYSTEM_CLOCK
from seatrial_rollout.judge.errors import NoVerdictError
from seatrial_rollout.judge.tokens import JudgeAccess
from seatrial_rollout.judge.wire import COMPLETIONS, VERIFICATION

_ASK_SECONDS = 30.0
_TRIES = 15
_PAUSE_SECONDS = 2.0
"""Between tries; a gateway that died is back in ten seconds, or in more on a busy machine."""


@dataclass(frozen=True, slots=True)
class Verification:
    """One trial's verification, from its beginning to its deadline."""

    access: JudgeAccess
    trial: str
    name: str
    """No other verification has it, of whatever trial."""
    token: str
    """Made when it began; the verifier's."""
    began_at: float
    """In s since the epoch."""

    @classmethod
    def begin(cls, access: JudgeAccess, trial: str, seconds: float) -> "Verification":
        """Begin now.

        Args:
            access: The run's judge.
            trial: The trial.
            seconds: Time until the deadline.
        """
        name = uuid.uuid4().hex
        return cls(access, trial, name, access.token(trial, name, seconds), time.time())

    def environment(self, url: str) -> dict[str, str]:
        """What a verifier needs to ask; any client of OpenAI reads it.

        Args:
            url: The gateway as the verifier sees it.
        """
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": self.token,
            "JUDGE_MODEL": self.access.model,
        }

    async def ask(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> str:
        """The judge's words; a gateway that is just being replaced is waited for.

        Raises:
            NoVerdictError: if there are none.
        """
        status, content = await self._post(session, body)
        if status != 200:
            raise NoVerdictError(f"the judge gave no verdict: status {status}: {content}")
        return str(content["choices"][0]["message"]["content"] or "")

    async def check(self) -> None:
        """Make sure that every question of the verifier was answered in the end.

        A script that goes on without a verdict, and scores what it could not know, is not believed.

        Raises:
            NoVerdictError: if one was not, or if the gateway cannot tell.
        """
        token = self.access.token(self.trial, self.name, _ASK_SECONDS)  # the deadline may have passed meanwhile
        timeout = aiohttp.ClientTimeout(total=_ASK_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
                session.get(self.access.url + VERIFICATION, headers=_shown(token)) as response,
            ):
                told = await response.json()
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise NoVerdictError(f"the judge's gateway does not tell whether it has answered: {exc!r}") from exc
        unanswered: list[str] = told["unanswered"]
        if unanswered:
            raise NoVerdictError(f"{len(unanswered)} questions to the judge have no answer: {unanswered[0]}")
        if told["gateway_started_at"] > self.began_at:
            raise NoVerdictError("the judge's gateway was replaced meanwhile, and with it went what it owed")

    async def _post(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        problem: Exception = TimeoutError()
        for _ in range(_TRIES):
            try:
                async with session.post(
                    self.access.url + COMPLETIONS, json=body, headers=_shown(self.token)
                ) as response:
                    return response.status, await response.json(content_type=None)
            except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
                problem = exc
            await SYSTEM_CLOCK.sleep(_PAUSE_SECONDS)
        raise NoVerdictError(f"the judge's gateway does not answer: {problem!r}") from problem


def _shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
