"""vLLM's admin routes as calls. They are reached over the server's Unix socket only, never through the gateway."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from seatrial_api.clock import Deadline


class RefusedError(aiohttp.ClientPayloadError):
    """The server did nothing of what it was asked for, and said so."""


class VllmAdmin:
    """Weight updates, pausing and metrics of one server.

    Every method raises `aiohttp.ClientError`, `OSError` or `TimeoutError` when the server is gone, refuses or does
    not answer in time: `ADMIN_ERRORS`.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def metrics_text(self, deadline: Deadline) -> str:
        """Prometheus text."""
        timeout = aiohttp.ClientTimeout(total=deadline.remaining)
        async with self._session.get("/metrics", timeout=timeout, raise_for_status=True) as response:
            return await response.text()

    async def pause(self, deadline: Deadline, *, clear_kv_cache: bool) -> None:
        """Freeze running requests between two steps; with `clear_kv_cache` they are recomputed when they go on."""
        clear = "true" if clear_kv_cache else "false"
        await self._post("/pause", deadline, params={"mode": "keep", "clear_cache": clear})

    async def resume(self, deadline: Deadline) -> None:
        """Let requests go on."""
        await self._post("/resume", deadline)

    async def set_weight_version(self, version: int, deadline: Deadline) -> None:
        """Label the tokens sampled from now on."""
        await self._post("/update_weight_version", deadline, {"new_version": str(version)})

    async def reload_weights(self, path: Path, deadline: Deadline) -> None:
        """Load the safetensors files of a folder in place."""
        await self.call_workers("load_weight_files", deadline, path=str(path))

    async def join_transfer(self, init_info: Mapping[str, Any], deadline: Deadline) -> None:
        """Enter a collective with the trainer."""
        await self._post("/init_weight_transfer_engine", deadline, {"init_info": dict(init_info)})

    async def leave_transfer(self, deadline: Deadline) -> None:
        """Leave the collective."""
        await self._post("/shutdown_weight_transfer_engine", deadline)

    async def start_weight_update(self, deadline: Deadline) -> None:
        """Make the model ready for new weights; with gloo a refusal, if some are missing, leaves the model whole."""
        await self._post("/start_weight_update", deadline)

    async def update_weights(self, update_info: Mapping[str, Any], deadline: Deadline) -> None:
        """Load what the collective brought or brings, and make the model usable again."""
        await self._post("/update_weights", deadline, {"update_info": dict(update_info)})
        await self._post("/finish_weight_update", deadline)

    async def checksums(self, deadline: Deadline) -> dict[str, str]:
        """SHA-256 of every weight, by vLLM's own names."""
        answer = await self._post("/weight_checker", deadline, {"action": "checksum"})
        digests: dict[str, str] = answer["checksums"]
        return digests

    async def world_size(self, deadline: Deadline) -> int:
        """Workers of the server, each of which is one rank of a collective."""
        timeout = aiohttp.ClientTimeout(total=deadline.remaining)
        async with self._session.get("/get_world_size", timeout=timeout, raise_for_status=True) as response:
            return int((await response.json())["world_size"])

    async def call_workers(self, method: str, deadline: Deadline, **kwargs: Any) -> list[Any]:
        """Call a method on every worker and return what they return."""
        body = {"method": method, "kwargs": kwargs, "timeout": deadline.remaining}
        answer = await self._post("/collective_rpc", deadline, body)
        results: list[Any] = answer.get("results", [])
        return results

    async def _post(
        self, path: str, deadline: Deadline, body: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=max(deadline.remaining, 0.001))
        async with self._session.post(path, json=body, timeout=timeout, **kwargs) as response:
            if response.status != 200:
                raise RefusedError(f"{path}: HTTP {response.status}: {(await response.text())[:500]}")
            answer: dict[str, Any] = await response.json(content_type=None) or {}
            return answer


ADMIN_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
"""What a call to a server that is gone, refuses or hangs raises."""
