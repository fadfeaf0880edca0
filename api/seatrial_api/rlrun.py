"""`RLRun`: one training job."""

from typing import ClassVar, Literal

from pydantic import Field

from seatrial_api.base import NonNegative
from seatrial_api.kubernetes_object import SERVICE_NAME_RULES, ApiVersion, ObjectMeta
from seatrial_api.rules import Rule, RuledModel, immutable, unique
from seatrial_api.spec.algorithm import AlgorithmSpec
from seatrial_api.spec.asynchrony import AsyncSpec
from seatrial_api.spec.backend import TrainerSpec
from seatrial_api.spec.data import DataSpec
from seatrial_api.spec.harness import HarnessSpec
from seatrial_api.spec.judge import JudgeSpec
from seatrial_api.spec.model import ModelSpec
from seatrial_api.spec.operations import CheckpointSpec, CostSpec, GuardsSpec, ReportSpec, StorageSpec, TrackingSpec
from seatrial_api.spec.rollout import RolloutPoolTemplate, SandboxSpec
from seatrial_api.spec.stages import StageSpec
from seatrial_api.spec.topology import TopologySpec, inference_nodes, train_nodes
from seatrial_api.status import RLRunStatus

_CEILING = "(self.async.maxStalenessSteps + 1) * self.algorithm.batchSize * self.algorithm.groupSize"
_ENGINES = "self.rollout.engines"
_GPUS = "self.topology.gpusPerNode"
_PLACES = "self.topology.agents.replicas * self.topology.agents.hostsPerReplica * self.topology.agents.trialsPerHost"
_INFERENCE_NODES = inference_nodes("self.topology")
_TRAIN_NODES = train_nodes("self.topology")


def _first(condition: str) -> str:
    """Index of the first stage for which `condition` holds; -1 if there is none."""
    return f"self.stages.map(stage, {condition}).indexOf(true)"


_FIRST_PREFLIGHT = _first("has(stage.preflight)")
_FIRST_OVERFIT = _first("has(stage.overfit)")
_FIRST_TRAIN = _first("has(stage.train)")
_FIRST_INITIAL = _first("has(stage.evaluate) && stage.evaluate.checkpoint == 'Initial'")
_FIRST_TRAINED = _first("has(stage.evaluate) && stage.evaluate.checkpoint != 'Initial'")
_FIRST_GAIN = _first("has(stage.evaluate) && has(stage.evaluate.minGain)")

_HARNESSES = "(size({0}.harnesses) > 0 ? {0}.harnesses : [self.harness.name])"
_IS_GAIN_MEASURABLE = (
    "self.stages.exists(other, has(other.evaluate) && other.evaluate.checkpoint == 'Initial' && "
    "stage.evaluate.sampling[0] in other.evaluate.sampling && "
    f"{_HARNESSES.format('stage.evaluate')}[0] in {_HARNESSES.format('other.evaluate')})"
)

_FITTING_RULES = (
    Rule(
        f"type(self.async.concurrency) == string || self.async.concurrency <= {_CEILING}",
        f"async.concurrency {{self.async.concurrency}} can never be reached: staleness admits {{{_CEILING}}} trials, "
        "which is (maxStalenessSteps + 1) x batchSize x groupSize; lower it, or raise one of those",
        ".async.concurrency",
    ),
    Rule(
        f"type(self.async.concurrency) == string || self.async.concurrency <= {_PLACES}",
        f"async.concurrency {{self.async.concurrency}} exceeds the {{{_PLACES}}} places of topology.agents, which are "
        "replicas x hostsPerReplica x trialsPerHost; lower it, or raise one of those",
        ".async.concurrency",
    ),
    Rule(
        "self.trainer.maxTokensPerMicrobatch >= self.model.contextLength.train",
        "trainer.maxTokensPerMicrobatch {self.trainer.maxTokensPerMicrobatch} cannot hold one conversation of "
        "model.contextLength.train {self.model.contextLength.train} tokens; raise it, or lower the context length",
        ".trainer.maxTokensPerMicrobatch",
    ),
    Rule(
        f"self.async.weightSync.method != 'nccl' || {_GPUS} > 0",
        "async.weightSync.method nccl needs GPUs and topology.gpusPerNode is 0; choose gloo or files",
        ".async.weightSync.method",
    ),
    Rule(
        f"self.async.weightSync.method != 'nccl' || self.topology.nodes > 1 || {_GPUS} == 0 || "
        f"{_ENGINES}.replicas * {_ENGINES}.tensorParallel + self.trainer.ranks <= {_GPUS}",
        f"async.weightSync.method nccl needs a GPU for each process, and {{{_ENGINES}.replicas * "
        f"{_ENGINES}.tensorParallel}} for engines with {{self.trainer.ranks}} for training exceed the {{{_GPUS}}} of "
        "the one node; choose gloo or files, which can share a GPU, or use fewer",
        ".async.weightSync.method",
    ),
    Rule(
        f"{_GPUS} == 0 || {_ENGINES}.replicas <= {_INFERENCE_NODES} * ({_GPUS} / {_ENGINES}.tensorParallel)",
        f"rollout.engines: {{{_ENGINES}.replicas}} engines of {{{_ENGINES}.tensorParallel}} GPUs do not fit "
        f"{{{_INFERENCE_NODES}}} inference nodes of {{{_GPUS}}} GPUs, and an engine stays within a node; lower "
        "replicas or tensorParallel, or change topology",
        ".rollout.engines",
    ),
    Rule(
        f"{_GPUS} > 0 || {_ENGINES}.tensorParallel == 1",
        f"rollout.engines.tensorParallel {{{_ENGINES}.tensorParallel}} counts GPUs and topology.gpusPerNode is 0; set "
        "it to 1, or set gpusPerNode",
        ".rollout.engines.tensorParallel",
    ),
    Rule(
        f"{_GPUS} == 0 || !has({_ENGINES}.kvCacheGib)",
        "rollout.engines.kvCacheGib sizes the cache of engines on CPUs; set gpuMemoryUtilization instead on GPUs",
        ".rollout.engines.kvCacheGib",
    ),
    Rule(
        f"{_GPUS} == 0 || self.trainer.ranks <= {_TRAIN_NODES} * {_GPUS}",
        f"trainer.ranks {{self.trainer.ranks}} exceeds the {{{_TRAIN_NODES} * {_GPUS}}} GPUs of the training nodes; "
        "lower it, or change topology",
        ".trainer.ranks",
    ),
    Rule(
        "self.trainer.backend != 'tinker' || has(self.model.lora)",
        "trainer.backend tinker trains adapters only; set model.lora or choose another backend",
        ".model",
    ),
    Rule(
        "size(self.rollout.sandboxes) == 0 || self.sandbox.provider == 'kubernetes'",
        "rollout.sandboxes keeps pods warm, which {self.sandbox.provider} has not; remove it or choose the provider "
        "kubernetes",
        ".rollout.sandboxes",
    ),
    Rule(
        "self.rollout.sandboxes.all(one, one.lifetimeSeconds >= self.harness.limits.wallTimeoutSeconds)",
        "rollout.sandboxes has a lifetimeSeconds below the {self.harness.limits.wallTimeoutSeconds} of "
        "harness.limits.wallTimeoutSeconds, so that long trials would lose their sandboxes; raise it, or lower that",
        ".rollout.sandboxes",
    ),
)

_PLAYBOOK_RULES = (
    unique("stages", "name"),
    Rule(
        "has(self.data.train) || self.stages.all(stage, has(stage.evaluate))",
        "data.train is empty, and all stages but Evaluate take their tasks from there; add that set, or remove those "
        "stages",
        ".data",
    ),
    Rule(
        f"{_FIRST_TRAINED} < 0 || ({_FIRST_TRAIN} >= 0 && {_FIRST_TRAIN} < {_FIRST_TRAINED})",
        "a stage evaluates the checkpoint Best or Last before any Train stage has made one; move it behind a Train "
        "stage",
        ".stages",
    ),
    Rule(
        f"{_FIRST_GAIN} < 0 || ({_FIRST_INITIAL} >= 0 && {_FIRST_INITIAL} < {_FIRST_GAIN})",
        "a stage sets minGain with no earlier evaluation of the checkpoint Initial to gain over; add one, or remove "
        "minGain",
        ".stages",
    ),
    Rule(
        f"self.stages.all(stage, !has(stage.evaluate) || !has(stage.evaluate.minGain) || {_IS_GAIN_MEASURABLE})",
        "a stage sets minGain for its first sampling and harness, and no evaluation of the checkpoint Initial measures "
        "these; add them to that one",
        ".stages",
    ),
    Rule(
        f"{_FIRST_GAIN} < 0 || has(self.data.heldOut)",
        "a stage sets minGain, which is measured on data.heldOut; add that set, or remove minGain",
        ".stages",
    ),
    Rule(
        "self.stages.all(stage, !has(stage.evaluate) && !has(stage.ablate)) || has(self.data.heldOut) || "
        "size(self.data.regression) > 0",
        "Evaluate and Ablate stages measure on data.heldOut and data.regression, and there is neither; add one",
        ".stages",
    ),
    Rule(
        "!self.stages.exists(stage, has(stage.evaluate) && stage.evaluate.checkpoint == 'Best') || "
        "self.stages.exists(stage, has(stage.train) && stage.train.validateEverySteps > 0)",
        "a stage evaluates the checkpoint Best, which validation chooses, and no Train stage validates; set "
        "validateEverySteps, or evaluate Last",
        ".stages",
    ),
    Rule(
        "!self.stages.exists(stage, has(stage.train) && stage.train.validateEverySteps > 0) || "
        "has(self.data.validation)",
        "a Train stage validates and data.validation is empty; add that set, or set validateEverySteps to 0",
        ".stages",
    ),
    Rule(
        f"{_FIRST_OVERFIT} < 0 || ({_FIRST_PREFLIGHT} >= 0 && {_FIRST_PREFLIGHT} < {_FIRST_OVERFIT})",
        "an Overfit stage trains on the tasks with reward variance that Preflight finds, and none comes before it; "
        "add one",
        ".stages",
    ),
    Rule(
        "self.stages.all(stage, !has(stage.overfit) || self.stages.all(other, !has(other.preflight) || "
        "stage.overfit.tasks <= other.preflight.varianceTasks))",
        "an Overfit stage wants more tasks with reward variance than varianceTasks of Preflight looks for; lower its "
        "tasks, or raise varianceTasks",
        ".stages",
    ),
)

_IMMUTABLE = (
    "model",
    "data",
    "harness",
    "algorithm",
    "topology",
    "trainer",
    "sandbox",
    "judge",
    "checkpoint",
    "storage",
    "tracking",
)


class RLRunSpec(RuledModel):
    """What the user wants."""

    rules: ClassVar[tuple[Rule, ...]] = (*_FITTING_RULES, *_PLAYBOOK_RULES, *immutable(*_IMMUTABLE))

    model: ModelSpec
    """The policy."""
    data: DataSpec
    """The tasks."""
    harness: HarnessSpec = HarnessSpec()
    """The agent loop."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """The training algorithm."""
    async_: AsyncSpec = Field(default=AsyncSpec(), alias="async")
    """How far generation may run ahead."""
    topology: TopologySpec = TopologySpec()
    """Nodes and roles."""
    trainer: TrainerSpec = TrainerSpec()
    """The policy backend."""
    rollout: RolloutPoolTemplate = RolloutPoolTemplate()
    """Engines and warm sandboxes."""
    sandbox: SandboxSpec = SandboxSpec()
    """Where tools run."""
    judge: JudgeSpec | None = None
    """Models that verifiers may ask; none if empty."""
    stages: list[StageSpec] = Field(min_length=1, max_length=32)
    """The playbook, in order."""
    guards: GuardsSpec = GuardsSpec()
    """Bounds that end a Train stage resumably."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Checkpoints."""
    storage: StorageSpec = StorageSpec()
    """Run storage; the launcher's default if empty."""
    tracking: TrackingSpec = TrackingSpec()
    """Experiment trackers."""
    report: ReportSpec = ReportSpec()
    """What the report shows."""
    cost: CostSpec = CostSpec()
    """Prices."""
    suspend: bool = False
    """Release all nodes and keep the run resumable."""
    backoff_limit: NonNegative = 6
    """Attempts in a row that may end early without progress, a finished stage or a checkpoint interval, between them;
    one more and the run fails."""
    ttl_seconds_after_finished: NonNegative | None = None
    """Delete a finished run after this time; never if empty."""


_BEGUN = "has(self.status) && has(self.status.stages)"


class RLRun(RuledModel):
    """One training job."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *SERVICE_NAME_RULES,
        Rule(
            f"!({_BEGUN}) || self.status.stages.all(begun, "
            "oldSelf.spec.stages.all(stage, stage.name != begun.name || stage in self.spec.stages))",
            "a stage that has begun cannot change or go; restore it, and edit only stages still to come",
        ),
    )

    api_version: ApiVersion
    """API group and version."""
    kind: Literal["RLRun"]
    """Kind of the object."""
    metadata: ObjectMeta
    """Name, namespace, labels, annotations."""
    spec: RLRunSpec
    """What the user wants."""
    status: RLRunStatus | None = None
    """What was observed; written by the operator alone."""
