"""Who calls: a service account, by a token that was made out for the broker."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from seatrial_api.clock import SYSTEM_CLOCK, Clock
from seatrial_api.errors import SeatrialError
from seatrial_api.sandboxes import BROKER_AUDIENCE
from seatrial_operator.kube.client import KubeClient
from seatrial_operator.kube.resources import TOKEN_REVIEWS

_SERVICE_ACCOUNT = "system:serviceaccount:"
_ACCEPTED_SECONDS = 60.0
_REFUSED_SECONDS = 5.0
_MAX_KNOWN = 4096


class UnknownCallerError(SeatrialError):
    """The token is not one that lets a caller in."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    namespace: str
    """Empty if the token was refused."""
    why: str
    until: float


@dataclass
class Callers:
    """Asks the API server about tokens, and remembers its verdicts for a while."""

    client: KubeClient
    namespaces: Sequence[str] = ()
    """Namespaces that are served; all if empty."""
    clock: Clock = SYSTEM_CLOCK
    _known: dict[bytes, _Verdict] = field(default_factory=dict)
    _asking: dict[bytes, asyncio.Lock] = field(default_factory=dict)

    async def namespace_of(self, token: str) -> str:
        """The namespace of the service account that a token stands for.

        Raises:
            UnknownCallerError: if the token is no good, or its namespace is not served.
            KubeError: if the API server cannot tell now.
        """
        digest = sha256(token.encode()).digest()
        verdict = self._known.get(digest)
        if verdict is None or verdict.until <= self.clock.now():
            verdict = await self._ask_once(digest, token)
        if not verdict.namespace:
            raise UnknownCallerError(verdict.why)
        return verdict.namespace

    async def _ask_once(self, digest: bytes, token: str) -> _Verdict:
        """Many calls with one new token ask once."""
        lock = self._asking.setdefault(digest, asyncio.Lock())
        try:
            async with lock:
                verdict = self._known.get(digest)
                if verdict is None or verdict.until <= self.clock.now():
                    verdict = self._known[digest] = await self._ask(token)
                    self._forget_old()
                return verdict
        finally:
            self._asking.pop(digest, None)

    async def _ask(self, token: str) -> _Verdict:
        review = {
            "apiVersion": TOKEN_REVIEWS.api_version,
            "kind": TOKEN_REVIEWS.kind,
            "spec": {"token": token, "audiences": [BROKER_AUDIENCE]},
        }
        status = (await self.client.create(TOKEN_REVIEWS, None, review)).get("status") or {}
        username = (status.get("user") or {}).get("username", "")
        if not status.get("authenticated") or BROKER_AUDIENCE not in (status.get("audiences") or []):
            why = f"the token is not valid for the audience {BROKER_AUDIENCE}: {status.get('error', 'refused')}"
            return _Verdict("", why, self.clock.now() + _REFUSED_SECONDS)
        if not username.startswith(_SERVICE_ACCOUNT):
            return _Verdict("", f"{username} is no service account", self.clock.now() + _REFUSED_SECONDS)
        namespace = username.removeprefix(_SERVICE_ACCOUNT).partition(":")[0]
        if self.namespaces and namespace not in self.namespaces:
            why = f"the namespace {namespace} is not among those that this broker serves"
            return _Verdict("", why, self.clock.now() + _REFUSED_SECONDS)
        return _Verdict(namespace, "", self.clock.now() + _ACCEPTED_SECONDS)

    def _forget_old(self) -> None:
        if len(self._known) > _MAX_KNOWN:
            now = self.clock.now()
            self._known = {digest: verdict for digest, verdict in self._known.items() if verdict.until > now}
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
