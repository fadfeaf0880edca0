"""Contradictions, each breaking one cross-field rule of a manifest that is valid without it."""

import copy
from typing import Any

from seatrial_api.rlrun import RLRun
from seatrial_api.rollout_pool import RolloutPool
from seatrial_api.rules import RuledModel
from seatrial_api.world_image import WorldImage
from tests.manifests import put, run_manifest

NCCL_OFF = {"spec__async__weightSync__method": "gloo"}
POD = "spec__topology__train__podTemplate"
PROVIDER = {"name": "p", "baseUrl": "https://judge.example/v1", "keys": [{"env": "KEY"}], "models": [{"name": "m"}]}
JUDGE = {"model": "m", "providers": [PROVIDER]}

RUN_CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"metadata__name": "n" * 40}, ".metadata.name", "longer than 39 characters"),
    ({"metadata__name": "1run"}, ".metadata.name", "it must begin with a letter"),
    (
        {"spec__storage": {"pvc": {"claim": "c", "path": "a/../.."}}},
        ".spec.storage.pvc.path",
        "path a/../.. starts at the volume's root and stays below it",
    ),
    ({"spec__model__source": {"pvc": {"claim": "c", "path": "/a"}}}, ".spec.model.source.pvc.path", "path /a starts"),
    (
        {"spec__data__regression": [{"name": "a", "tasks": {"source": {"path": "train"}}}]},
        ".spec.data.regression",
        "the same source as train",
    ),
    (
        {"spec__topology": {"agents": {"resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "1"}}}}},
        ".spec.topology.agents.resources.requests",
        "requests exceed limits",
    ),
    (
        {"spec__topology": {"rollout": {"resources": {"limits": {"nvidia.com/gpu": "4"}}}}},
        ".spec.topology.rollout.resources",
        "another number of GPUs than gpusPerNode 8",
    ),
    (
        {"spec__topology": {"nodes": 2, "train": {"resources": {"requests": {"amd.com/gpu": "4"}}}}},
        ".spec.topology.train.resources",
        "another number of GPUs than gpusPerNode 8",
    ),
    (
        {"spec__topology": {"head": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}},
        ".spec.topology.head.resources",
        "head.resources asks for GPUs",
    ),
    (
        {"spec__topology": {"agents": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}},
        ".spec.topology.agents.resources",
        "agents.resources asks for GPUs",
    ),
    ({"spec__topology": {"train": {"image": "x"}}}, ".spec.topology.train", "describes pods that a run on one node"),
    (
        {
            "spec__topology": {
                "scheduling": {"volcano": {"queue": "q"}},
                "rollout": {"podTemplate": {"spec": {"schedulerName": "mine"}}},
            }
        },
        ".spec.topology.scheduling",
        "a podTemplate sets schedulerName",
    ),
    (
        {"spec__topology": {"gpusPerNode": 0}, "spec__rollout": {"engines": {"tensorParallel": 2}}, **NCCL_OFF},
        ".spec.rollout.engines.tensorParallel",
        "tensorParallel 2 counts GPUs",
    ),
    ({"spec__rollout": {"engines": {"kvCacheGib": 1}}}, ".spec.rollout.engines.kvCacheGib", "engines on CPUs"),
    ({"spec__stages__2__overfit": {"tasks": 33}}, ".spec.stages", "wants more tasks with reward variance"),
    ({"spec__model__source__hf": {"repo": "a/b"}}, ".spec.model.source", "exactly one of path, hf, s3, pvc; 2 are set"),
    ({"spec__storage": {"path": "a", "s3": {"uri": "s3://abc"}}}, ".spec.storage", "at most one of path, pvc, s3; 2"),
    ({"spec__data__validation": {"source": {"path": "train"}}}, ".spec.data.validation", "the same source as train"),
    ({"spec__data__heldOut": {"source": {"path": "train"}}}, ".spec.data.heldOut", "the same source as train"),
    ({"spec__data__heldOut": {"source": {"path": "validation"}}}, ".spec.data.heldOut", "same source as validation"),
    (
        {"spec__data__regression": [{"name": "a", "tasks": {"source": {"path": p}}} for p in "xy"]},
        ".spec.data.regression",
        "must differ in their name",
    ),
    ({"spec__data__domains": [{"name": "a"}, {"name": "a"}]}, ".spec.data.domains", "must differ in their name"),
    (
        {"spec__data__domains": [{"name": "a", "difficulty": {"minPassRate": 0.5, "maxPassRate": 0.25}}]},
        ".spec.data.domains[0].difficulty.minPassRate",
        "minPassRate 0.5 exceeds maxPassRate 0.25",
    ),
    ({"spec__harness__name": "archipelgo"}, ".spec.harness.name", "no harness is called archipelgo"),
    (
        {"spec__harness": {"name": "mini-swe-agent", "compaction": True}},
        ".spec.harness.compaction",
        "compaction is what mini-swe-agent cannot do",
    ),
    (
        {"spec__harness": {"compaction": True, "limits": {"contextNudgeFraction": 0.0}}},
        ".spec.harness.limits.contextNudgeFraction",
        "archipelago sums up when limits.contextNudgeFraction of the context is left, which is 0",
    ),
    (
        {"spec__harness": {"name": "codex", "notebook": True}},
        ".spec.harness.notebook",
        "a notebook is what codex cannot have",
    ),
    (
        {"spec__harness": {"name": "opencode", "limits": {"tools": [{"tool": "*", "maxCalls": 5}]}}},
        ".spec.harness.limits.tools",
        "budgets of tools are what opencode cannot keep",
    ),
    (
        {"spec__harness__limits": {"tools": [{"tool": "office_*"}]}},
        ".spec.harness.limits.tools[0]",
        "a budget of office_* limits nothing",
    ),
    (
        {"spec__harness__limits": {"tools": [{"tool": "office_*", "timeoutSeconds": 900}]}},
        ".spec.harness.limits.tools",
        "unless it is below toolCallTimeoutSeconds 600",
    ),
    (
        {"spec__harness__sampling": {"temperature": 0.7}},
        ".spec.harness.sampling",
        "temperature 1 and topP 1, not 0.7 and 1",
    ),
    (
        {"spec__harness__limits__toolResult": {"maxChars": 100, "headChars": 80, "tailChars": 40}},
        ".spec.harness.limits.toolResult.maxChars",
        "headChars 80 and tailChars 40 together exceed maxChars 100",
    ),
    (
        {"spec__harness__limits": {"agentTimeoutSeconds": 7200}},
        ".spec.harness.limits.wallTimeoutSeconds",
        "wallTimeoutSeconds 6000 ends a trial before its agentTimeoutSeconds 7200",
    ),
    ({"spec__algorithm__loss": {"name": "dppo", "high": 1.5}}, ".spec.algorithm.loss.high", "at most 1"),
    ({"spec__algorithm__loss": {"name": "glm5", "low": 1.0}}, ".spec.algorithm.loss.low", "no lower bound under glm5"),
    ({"spec__algorithm__loss": {"low": 0, "high": 0}}, ".spec.algorithm.loss.high", "leaves dppo no token"),
    ({"spec__algorithm__loss": {"ratioCap": 0.5}}, ".spec.algorithm.loss.ratioCap", "ratioCap 0.5"),
    (
        {"spec__algorithm__advantage": {"name": "rloo", "normalizeStd": True}},
        ".spec.algorithm.advantage.normalizeStd",
        "belongs to grpo, not to rloo",
    ),
    ({"spec__algorithm": {"groupSize": 1}}, ".spec.algorithm.groupSize", "groupSize 1 leaves nothing"),
    (
        {"spec__algorithm": {"groupSize": 4, "minValidTrials": 5}},
        ".spec.algorithm.minValidTrials",
        "minValidTrials 5 exceeds groupSize 4",
    ),
    (
        {"spec__algorithm": {"batchSize": 16, "minibatchSize": 5}},
        ".spec.algorithm.minibatchSize",
        "minibatchSize 5 does not divide batchSize 16",
    ),
    (
        {"spec__algorithm": {"advantage": {"name": "maxrl"}, "penalties": {"failedToolCall": 0.1}}},
        ".spec.algorithm.penalties",
        "maxrl needs rewards of at least 0",
    ),
    ({"spec__async__concurrency": 2000}, ".spec.async.concurrency", "2000 can never be reached: staleness admits 1024"),
    ({"spec__topology": {"nodes": 7}}, ".spec.topology.inferenceTrainRatio", "1:1 does not divide 7 nodes"),
    (
        {"spec__topology__scheduling": {"kueue": {"queue": "a"}, "volcano": {"queue": "b"}}},
        ".spec.topology.scheduling",
        "at most one of kueue, volcano; 2 are set",
    ),
    (
        {POD: {"spec": {"containers": [{"name": "ray", "image": "x"}]}}},
        ".spec.topology.train.podTemplate",
        "must not set image, command, args, resources of the container ray",
    ),
    ({POD: {"spec": {"restartPolicy": "Always"}}}, ".spec.topology.train.podTemplate", "must not set restartPolicy"),
    ({POD: {"metadata": {"labels": {"ray.io/x": "1"}}}}, ".spec.topology.train.podTemplate", "labels under ray.io/"),
    (
        {"spec__trainer": {"backend": "megatron", "ranks": 6, "parallelism": {"tensor": 4}}},
        ".spec.trainer.parallelism",
        "tensor x pipeline x context = 4 does not divide 6 ranks",
    ),
    (
        {"spec__trainer": {"backend": "megatron", "ranks": 6, "parallelism": {"expert": 4}}},
        ".spec.trainer.parallelism",
        "expert x expertTensor x pipeline = 4 does not divide 6 ranks",
    ),
    (
        {"spec__trainer": {"backend": "megatron", "parallelism": {"virtualPipeline": 2}}},
        ".spec.trainer.parallelism.virtualPipeline",
        "a single stage has nothing to interleave",
    ),
    (
        {"spec__trainer": {"ranks": 4, "parallelism": {"tensor": 4}}},
        ".spec.trainer.parallelism",
        "parallelism is megatron's, and torch",
    ),
    ({"spec__trainer": {"routerReplay": True}}, ".spec.trainer.routerReplay", "needs the megatron backend, not torch"),
    ({"spec__trainer": {"backend": "tinker"}}, ".spec.model", "tinker trains adapters only"),
    (
        {"spec__trainer": {"maxTokensPerMicrobatch": 1024}},
        ".spec.trainer.maxTokensPerMicrobatch",
        "maxTokensPerMicrobatch 1024 cannot hold one conversation of model.contextLength.train 4096 tokens",
    ),
    ({"spec__topology__gpusPerNode": 0}, ".spec.async.weightSync.method", "nccl needs GPUs"),
    (
        {"spec__topology__gpusPerNode": 1},
        ".spec.async.weightSync.method",
        "1 for engines with 1 for training exceed the 1 of the one node",
    ),
    (
        {"spec__rollout": {"engines": {"replicas": 3, "tensorParallel": 4}}, **NCCL_OFF},
        ".spec.rollout.engines",
        "3 engines of 4 GPUs do not fit 1 inference nodes of 8 GPUs",
    ),
    ({"spec__trainer": {"ranks": 16}, **NCCL_OFF}, ".spec.trainer.ranks", "ranks 16 exceeds the 8 GPUs"),
    (
        {"spec__rollout__engines": {"args": ["--max-model-len=5"]}},
        ".spec.rollout.engines.args",
        "sets what the run sets by itself",
    ),
    (
        {"spec__rollout__sandboxes": [{"world": "a", "warmMin": 9, "warmMax": 8}]},
        ".spec.rollout.sandboxes[0].warmMin",
        "warmMin 9 exceeds warmMax 8",
    ),
    (
        {"spec__rollout__sandboxes": [{"world": "a", "warmMax": 8, "ceiling": 7}]},
        ".spec.rollout.sandboxes[0].warmMax",
        "warmMax 8 exceeds ceiling 7",
    ),
    (
        {"spec__rollout__sandboxes": [{"world": "a", "recycle": True}]},
        ".spec.rollout.sandboxes[0].recycle",
        "recycle would hand a trial what the one before it left",
    ),
    ({"spec__judge": {**JUDGE, "model": "other"}}, ".spec.judge.model", "no provider serves model other"),
    ({"spec__judge": {**JUDGE, "providers": [PROVIDER] * 2}}, ".spec.judge.providers", "must differ in their name"),
    (
        {"spec__judge": {**JUDGE, "runBudget": {"dollars": 5}}},
        ".spec.judge.providers",
        "counts nothing for a model without a price",
    ),
    (
        {"spec__judge": {**JUDGE, "providers": [{**PROVIDER, "models": [{"name": "m"}] * 2}]}},
        ".spec.judge.providers[0].models",
        "must differ in their name",
    ),
    (
        {"spec__judge": {**JUDGE, "providers": [{**PROVIDER, "keys": [{"env": "KEY", "secret": "key"}]}]}},
        ".spec.judge.providers[0].keys[0]",
        "key needs exactly one of env, secret; 2 are set",
    ),
    (
        {"spec__rollout__sandboxes": [{"world": "a"}, {"world": "a"}]},
        ".spec.rollout.sandboxes",
        "must differ in their world",
    ),
    (
        {"spec__rollout__sandboxes": [{"world": "a"}], "spec__sandbox": {"provider": "local"}},
        ".spec.rollout.sandboxes",
        "keeps pods warm, which local has not",
    ),
    (
        {"spec__rollout__sandboxes": [{"world": "a"}, {"world": "b", "lifetimeSeconds": 5999}]},
        ".spec.rollout.sandboxes",
        "a lifetimeSeconds below the 6000 of harness.limits.wallTimeoutSeconds",
    ),
    ({"spec__sandbox": {"config": {"a": "b"}}}, ".spec.sandbox.config", "is for a Harbor environment"),
    (
        {"spec__sandbox": {"provider": "local", "world": "a"}},
        ".spec.sandbox.world",
        "world a is what pods are made from, which local has not",
    ),
    ({"spec__guards": {"minEntropy": 2, "maxEntropy": 1}}, ".spec.guards.minEntropy", "2 is not below maxEntropy 1"),
    ({"spec__guards": {"maxRewardJump": 3, "windowSteps": 1}}, ".spec.guards.windowSteps", "windowSteps 1 batches"),
    ({"spec__stages__3__name": "overfit"}, ".spec.stages", "must differ in their name"),
    ({"spec__stages__3__name": "validation"}, ".spec.stages[3].name", "give the stage another name"),
    (
        {"spec__stages__3__evaluate": {"checkpoint": "Last"}},
        ".spec.stages[3]",
        "a stage needs exactly one of preflight",
    ),
    (
        {"spec__stages__0__preflight": {"varianceTasks": 9, "maxVarianceTries": 8}},
        ".spec.stages[0].preflight.varianceTasks",
        "varianceTasks 9 can never be found among maxVarianceTries 8",
    ),
    ({"spec__stages__1__evaluate__minGain": 0.1}, ".spec.stages[1].evaluate.minGain", "compares with the Initial"),
    ({"spec__stages__1__evaluate__harnesses": ["nope"]}, ".spec.stages[1].evaluate.harnesses", "neither a harness"),
    ({"spec__stages__2__overfit": {"steps": 2}}, ".spec.stages[2].overfit.steps", "steps 2 is too few"),
    ({"spec__stages__2__overfit": {"groupSize": 1}}, ".spec.stages[2].overfit.groupSize", "groupSize 1 leaves"),
    (
        {"spec__stages__2": {"name": "a", "ablate": {"arms": [{"name": "x", "patch": {}}] * 2}}},
        ".spec.stages[2].ablate.arms",
        "must differ in their name",
    ),
    ({"spec__stages__0": {"name": "a", "evaluate": {"checkpoint": "Last"}}}, ".spec.stages", "before any Train stage"),
    ({"spec__stages__1": {"name": "a", "train": {"steps": 1}}}, ".spec.stages", "no earlier evaluation"),
    (
        {"spec__async__concurrency": 65, "spec__topology__agents": {"trialsPerHost": 64}},
        ".spec.async.concurrency",
        "exceeds the 64 places",
    ),
    (
        {"spec__stages__4__evaluate__sampling": [{"temperature": 0.5}, {}]},
        ".spec.stages",
        "no evaluation of the checkpoint Initial measures these",
    ),
    (
        {"spec__stages__1__evaluate__harnesses": ["single-turn"]},
        ".spec.stages",
        "no evaluation of the checkpoint Initial measures these",
    ),
    (
        {"spec__data__regression": [{"name": "held-out", "tasks": {"source": {"path": "r"}}}]},
        ".spec.data.regression",
        "held-out is what results call data.heldOut",
    ),
    ({"spec__data__train": None}, ".spec.data", "data.train is empty, and all stages but Evaluate"),
    ({"spec__data__heldOut": None}, ".spec.stages", "sets minGain, which is measured on data.heldOut"),
    (
        {"spec__data__heldOut": None, "spec__stages__4__evaluate__minGain": None},
        ".spec.stages",
        "measure on data.heldOut and data.regression, and there is neither",
    ),
    ({"spec__stages__3__train__validateEverySteps": 0}, ".spec.stages", "which validation chooses"),
    ({"spec__data__validation": None}, ".spec.stages", "a Train stage validates and data.validation is empty"),
    ({"spec__stages__0": {"name": "a", "train": {"steps": 1}}}, ".spec.stages", "none comes before it"),
]

WORLD = {"apiVersion": "seatrial.dev/v1alpha1", "kind": "WorldImage", "metadata": {"name": "w"}, "spec": {"image": "i"}}
SIDECAR = {"name": "s", "image": "i", "port": 80}
WORLD_CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"metadata__name": "a.world"}, ".metadata.name", "the name a.world becomes a label's value"),
    ({"spec__resources": {"limits": {"nvidia.com/gpu": "0.5"}}}, ".spec.resources.limits", "are whole numbers"),
    ({"spec__resources": {"requests": {"amd.com/gpu": "1k"}}}, ".spec.resources.requests", "are whole numbers"),
    ({"spec__mcp": {"kind": "Sidecars"}}, ".spec.mcp.sidecars", "needs at least one; kind is Sidecars with 0"),
    ({"spec__mcp": {"kind": "Archipelago", "servers": ["code"]}}, ".spec.mcp.servers", "Archipelago brings its own"),
    ({"spec__mcp": {"command": ["/start.sh"]}}, ".spec.mcp.command", "kind Runtime has none"),
    ({"spec__mcp": {"kind": "Sidecars", "sidecars": [SIDECAR] * 2}}, ".spec.mcp.sidecars", "must differ in their name"),
    (
        {"spec__inspection": {"tasks": {"source": {"path": "t"}}, "repeats": 1, "maxFlakiness": 0.5}},
        ".spec.inspection.repeats",
        "maxFlakiness 0.5 needs repeats of 2 or more",
    ),
]

POOL = {"apiVersion": "seatrial.dev/v1alpha1", "kind": "RolloutPool", "metadata": {"name": "p"}, "spec": {"run": "r"}}
POOL_CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"spec__run": None}, ".spec", "a pool needs exactly one of run, model; 0 are set"),
    ({"spec__sandboxes": [{"world": "a"}] * 2}, ".spec.sandboxes", "must differ in their world"),
]

CASES = [
    *((RLRun, run_manifest(), *case) for case in RUN_CASES),
    *((WorldImage, WORLD, *case) for case in WORLD_CASES),
    *((RolloutPool, POOL, *case) for case in POOL_CASES),
]

UPDATES: list[tuple[type[RuledModel], dict[str, Any], dict[str, Any], str]] = [
    *((RLRun, run_manifest(), changes, path) for changes, path in (
        ({"spec__model__dtype": "float32"}, ".spec.model"),
        ({"spec__data__train__limit": 3}, ".spec.data"),
        ({"spec__harness__history": "AsTemplate"}, ".spec.harness"),
        ({"spec__algorithm__seed": 1}, ".spec.algorithm"),
        ({"spec__topology__hold": "Run"}, ".spec.topology"),
        ({"spec__trainer__recompute": "Full"}, ".spec.trainer"),
        ({"spec__sandbox__provider": "local"}, ".spec.sandbox"),
        ({"spec__judge": JUDGE}, ".spec.judge"),
        ({"spec__checkpoint__keep": 9}, ".spec.checkpoint"),
        ({"spec__storage__path": "x"}, ".spec.storage"),
        ({"spec__tracking__trackio": {"project": "x"}}, ".spec.tracking"),
        ({"spec__async__maxStalenessSteps": 2}, ".spec.async.maxStalenessSteps"),
        ({"spec__async__weightSync__clearKvCache": True}, ".spec.async.weightSync"),
        ({"spec__rollout__engines__maxNumSeqs": 9}, ".spec.rollout.engines"),
    )),
    (RLRun, run_manifest(status__stages=[{"name": "train"}]), {"spec__stages__3__train__steps": 21}, ""),
    (RolloutPool, POOL, {"spec__engines": {"replicas": 2}}, ".spec.engines"),
    (RolloutPool, POOL, {"spec__run": "other"}, ".spec.run"),
    (
        RolloutPool,
        {**POOL, "spec": {"model": run_manifest()["spec"]["model"]}},
        {"spec__model__dtype": "float32"},
        ".spec.model",
    ),
]  # fmt: skip

FREE_UPDATES: list[dict[str, Any]] = [
    {"spec__async__concurrency": 5},
    {"spec__guards__maxErrorRate": 0.5},
    {"spec__suspend": True},
    {"spec__ttlSecondsAfterFinished": 5},
    {"spec__cost__nodeHour": 5},
    {"spec__report__trajectories": 5},
    {"spec__stages__4__evaluate__passes": 5},
    {"spec__rollout__sandboxes": [{"world": "a"}]},
]


def changed(manifest: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of `manifest` with `changes` put into it."""
    copied = copy.deepcopy(manifest)
    for path, value in changes.items():
        put(copied, path, value)
    return copied
