"""A stand-in for the Tinker service: a real HTTP server that speaks the routes which the SDK uses to train.

It is not the service: it holds one tiny model and computes with this repository's adapters on transformers. What it
shows is that the SDK, unchanged, can do with it what the backend asks.
"""

import copy
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web
from safetensors.torch import save
from tinker.proto import tinker_public_pb2 as wire
from torch import Tensor

from seatrial_api.spec.model import LoRA
from seatrial_trainer.policy.adapters import Adapters

ALPHA = 32
KEY = "tml-of-a-test"


class Model:
    """A model in training."""

    def __init__(self, path: Path, rank: int, seed: int) -> None:
        from transformers import AutoModelForCausalLM  # noqa: PLC0415  heavy

        self.rank = rank
        self.module = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        spec = LoRA(rank=rank, alpha=ALPHA)
        self.adapters = Adapters(self.module, spec, head=self.module.get_output_embeddings(), seed=seed)
        self.optimizer = torch.optim.AdamW(self.adapters.parameters.values(), lr=0.0)

    def logprobs(self, tokens: list[int], targets: list[int]) -> Tensor:
        """Of each target, given the tokens up to its place."""
        logits = self.module(torch.tensor([tokens])).logits[0].float()
        return logits.log_softmax(-1).gather(1, torch.tensor(targets)[:, None])[:, 0]

    def step(self, settings: dict[str, float]) -> float:
        """One step of AdamW; returns the gradient's norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.adapters.parameters.values(), settings["grad_clip_norm"])
        for group in self.optimizer.param_groups:
            group |= {
                "lr": settings["learning_rate"],
                "betas": (settings["beta1"], settings["beta2"]),
                "eps": settings["eps"],
                "weight_decay": settings["weight_decay"],
            }
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def state(self) -> dict[str, Any]:
        """A copy of all that training goes on from."""
        weights = {name: p.detach().clone() for name, p in self.adapters.parameters.items()}
        return {"rank": self.rank, "weights": weights, "optimizer": copy.deepcopy(self.optimizer.state_dict())}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Go on from such a copy."""
        for name, parameter in self.adapters.parameters.items():
            parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def exported(self) -> dict[str, bytes]:
        """The adapters in PEFT's format."""
        named = {f"base_model.model.{name}.weight": p.detach() for name, p in self.adapters.parameters.items()}
        config = {"r": self.rank, "lora_alpha": ALPHA, "peft_type": "LORA"}
        return {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": save(named)}


@dataclass
class TinkerService:
    """The stand-in; of its requests it keeps those that a test asks about."""

    model_path: Path
    base_model: str
    models: dict[str, Model] = field(default_factory=dict)
    created: list[dict[str, Any]] = field(default_factory=list)
    _results: dict[str, Callable[[], web.Response]] = field(default_factory=dict)
    _saved: dict[str, dict[str, Any]] = field(default_factory=dict)
    _files: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @asynccontextmanager
    async def app(self) -> AsyncIterator[web.Application]:
        """The routes."""
        app = web.Application(client_max_size=1 << 26, middlewares=[_needs_key])
        answers = {
            "client/config": {},
            "client/dynamic_config": {},
            "create_session": {"session_id": "session"},
            "session_heartbeat": {},
            "telemetry": {"status": "accepted"},
        }
        for route, answer in answers.items():
            app.router.add_post(f"/api/v1/{route}", _answering(answer))
        steps = (self._forward_backward, self._optim_step, self._retrieve_future)
        keeps = (self._load_weights, self._save_weights, self._save_weights_external)
        for action in (self._create_model, self._get_info, *steps, *keeps):
            app.router.add_post(f"/api/v1/{action.__name__.removeprefix('_')}", action)
        app.router.add_get("/api/v1/training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls", self._urls)
        app.router.add_post("/api/v1/sessions/{session}/finish", _answering({}))
        app.router.add_get("/files/{run}/{name}/{file}", self._file)
        yield app

    async def _create_model(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.created.append(asked)
        if asked["base_model"] != self.base_model:
            return web.json_response({"detail": f"no model {asked['base_model']}"}, status=404)
        name = f"{asked['session_id']}:train:{asked['model_seq_id']}"
        lora = asked["lora_config"]
        self.models[name] = Model(self.model_path, lora["rank"], lora["seed"])
        return self._later({"model_id": name, "type": "create_model"})

    async def _get_info(self, request: web.Request) -> web.Response:
        asked = await request.json()
        rank = self.models[asked["model_id"]].rank
        told = {"model_id": asked["model_id"], "model_data": {"model_name": self.base_model}, "lora_rank": rank}
        return web.json_response(told)

    async def _load_weights(self, request: web.Request) -> web.Response:
        asked = await request.json()
        state = self._saved[asked["path"]]
        name = f"{asked['session_id']}:train:{asked['model_seq_id']}"
        self.models[name] = Model(self.model_path, state["rank"], seed=1)
        self.models[name].restore(state)
        return self._later({"path": asked["path"], "model_id": name})

    async def _save_weights(self, request: web.Request) -> web.Response:
        asked = await request.json()
        path = f"tinker://{asked['model_id']}/weights/{asked['path']}"
        if path in self._saved:
            return web.json_response({"detail": f"{path} exists"}, status=409)
        self._saved[path] = self.models[asked["model_id"]].state()
        return self._later({"path": path})

    async def _save_weights_external(self, request: web.Request) -> web.Response:
        asked = await request.json()
        path = f"{asked['model_id']}/{asked['path']}"
        self._files[path] = self.models[asked["model_id"]].exported()
        return self._later({"path": f"tinker://{asked['model_id']}/external_weights/{asked['path']}"})

    async def _urls(self, request: web.Request) -> web.Response:
        path = f"{request.match_info['run']}/{request.match_info['name']}"
        urls = {file: f"http://{request.host}/files/{path}/{file}" for file in self._files[path]}
        return web.json_response({"urls": urls, "expires": "2100-01-01T00:00:00Z"})

    async def _file(self, request: web.Request) -> web.Response:
        found = request.match_info
        return web.Response(body=self._files[f"{found['run']}/{found['name']}"][found["file"]])

    async def _forward_backward(self, request: web.Request) -> web.Response:
        asked = wire.ForwardBackwardRequest.FromString(await request.read())
        assert asked.loss_fn == "cross_entropy"
        model = self.models[asked.model_id]
        rows, loss = [], 0.0
        with torch.set_grad_enabled(not asked.forward_only):
            for datum in asked.data:
                tokens = np.frombuffer(datum.model_input[0].encoded_text.tokens, np.int32).tolist()
                targets = np.frombuffer(datum.loss_fn_inputs["target_tokens"].dense, np.int64).tolist()
                logprobs = model.logprobs(tokens, targets)
                weights = datum.loss_fn_inputs["weights"].dense if "weights" in datum.loss_fn_inputs else b""
                if not asked.forward_only:
                    part = -(logprobs * torch.tensor(np.frombuffer(weights, np.float32))).sum()
                    part.backward()
                    loss += float(part.detach())
                rows.append(logprobs.detach().numpy().astype(np.float32))
        return self._later_bytes(_output(rows, loss))

    async def _optim_step(self, request: web.Request) -> web.Response:
        asked = await request.json()
        norm = self.models[asked["model_id"]].step(asked["adam_params"])
        return self._later({"metrics": {"unclipped_grad_l2:mean": norm}})

    async def _retrieve_future(self, request: web.Request) -> web.Response:
        return self._results.pop((await request.json())["request_id"])()

    def _later(self, result: dict[str, Any]) -> web.Response:
        return self._promise(lambda: web.json_response(result))

    def _later_bytes(self, body: bytes) -> web.Response:
        return self._promise(lambda: web.Response(body=body, content_type="application/x-protobuf"))

    def _promise(self, result: Callable[[], web.Response]) -> web.Response:
        name = f"request-{len(self._results)}-{id(result)}"
        self._results[name] = result
        return web.json_response({"request_id": name})


@web.middleware
async def _needs_key(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    if request.path.startswith("/api/") and request.headers.get("X-API-Key") != KEY:
        return web.json_response({"detail": "unknown key"}, status=401)
    answer: web.StreamResponse = await handler(request)
    return answer


def _answering(answer: dict[str, Any]) -> Callable[[web.Request], Any]:
    async def answer_it(_request: web.Request) -> web.Response:
        return web.json_response(answer)

    return answer_it


def _output(rows: list[np.ndarray], loss: float) -> bytes:
    ends = np.cumsum([0, *(row.nbytes for row in rows)]).astype(np.int64)
    data = io.BytesIO()
    for row in rows:
        data.write(row.tobytes())
    fields = {"logprobs": wire.BatchedTensor(data=data.getvalue(), offsets=ends.tobytes(), dtype=wire.DTYPE_FLOAT32)}
    record = wire.ArrayRecord(fields=fields, num_datums=len(rows))
    output = wire.ForwardBackwardOutput(loss_fn_outputs=[record], metrics={"loss:sum": loss})
    return output.SerializeToString()
