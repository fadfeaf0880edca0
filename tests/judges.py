"""A judge's gateway for tests, and a verifier who asks it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from seatrial_api.spec.judge import JudgeBudget, JudgeProvider, JudgeRetries, JudgeSpec
from seatrial_rollout.judge.audit import AuditLog
from seatrial_rollout.judge.gateway import Gateway
from seatrial_rollout.judge.keys import make_rings
from seatrial_rollout.judge.tokens import JudgeAccess, SigningKey
from seatrial_rollout.judge.wire import COMPLETIONS, VERIFICATION
from tests.judge_provider import environment

RUN = "run-1"
SWIFT = JudgeRetries(first_seconds=0.01, max_seconds=0.05, attempts=4)
"""For tests whose provider fails."""


@dataclass
class Verifier:
    """Asks as a verifier would."""

    access: JudgeAccess
    session: aiohttp.ClientSession
    trial: str = "trial-1"
    seconds: float = 60.0
    gateway: Gateway | None = None

    @property
    def authorization(self) -> dict[str, str]:
        """A token made now."""
        return {"Authorization": f"Bearer {self.access.token(self.trial, f'of {self.trial}', self.seconds)}"}

    async def ask(self, text: str = "Is it right?", **body: Any) -> tuple[int, dict[str, Any]]:
        """Status and content of the answer."""
        question = {"model": "judge", "messages": [{"role": "user", "content": text}], "max_tokens": 100, **body}
        url = self.access.url + COMPLETIONS
        async with self.session.post(url, json=question, headers=self.authorization) as response:
            return response.status, await response.json()

    async def verification(self) -> dict[str, Any]:
        """How the trial's questions ended."""
        async with self.session.get(self.access.url + VERIFICATION, headers=self.authorization) as response:
            content: dict[str, Any] = await response.json()
            return {name: content[name] for name in ("answered", "unanswered")}


def said(content: dict[str, Any]) -> str:
    """The text of an answer."""
    return str(content["choices"][0]["message"]["content"])


@asynccontextmanager
async def judge(
    *providers: JudgeProvider,
    audit: Path,
    retries: JudgeRetries = SWIFT,
    trial_budget: JudgeBudget | None = None,
    **spec: Any,
) -> AsyncIterator[Verifier]:
    """A gateway over providers, and somebody who may ask it."""
    settings = JudgeSpec(
        providers=list(providers),
        model="judge",
        retries=retries,
        trial_budget=trial_budget or JudgeBudget(),
        **spec,
    )
    key = SigningKey.generate()
    rings = make_rings(settings, environment(*providers))
    gateway = Gateway(settings, rings, run=RUN, public_pem=key.public_pem, audit=AuditLog(audit))
    port = await gateway.start("127.0.0.1")
    access = JudgeAccess(RUN, f"http://127.0.0.1:{port}", key, "judge", settings.votes, settings.trial_budget)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield Verifier(access, session, gateway=gateway)
    finally:
        await gateway.stop()
