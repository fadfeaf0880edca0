"""`WorldImage`: one simulated company, the container image that trials run in and the tools over it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, FilePath, Fraction, ImageReference, Name, NonNegative, Positive, Seconds
from seatrial_api.conditions import Condition
from seatrial_api.kubernetes_object import LABEL_NAME_RULE, ApiVersion, ObjectMeta
from seatrial_api.rules import Rule, RuledModel, unique
from seatrial_api.spec.data import TaskSet
from seatrial_api.spec.topology import Resources

Argument = Annotated[str, Field(max_length=4096)]
Port = Annotated[int, Field(ge=1, le=65535)]
"""A TCP port."""


type RuntimeServer = Literal[
    "filesystem", "sheets", "workbooks", "docs", "slides", "pdf", "mail", "chat", "calendar", "code"
]
"""Our tool servers."""


class McpSidecar(ApiModel):
    """An MCP server in a container of its own beside the world."""

    name: Name
    """Name of the server; its tools are called `{server}_{tool}`."""
    image: ImageReference
    """Container image of the server."""
    port: Port
    """Port on which the server speaks streamable HTTP."""
    path: FilePath = "/mcp/"
    """HTTP path of the server."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the container."""
    resources: Resources = Resources()
    """Resources of the container."""


class Mcp(RuledModel):
    """Who serves the world's tools."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.kind == 'Sidecars' ? size(self.sidecars) > 0 : size(self.sidecars) == 0",
            "sidecars belongs to the kind Sidecars, which needs at least one; kind is {self.kind} with "
            "{size(self.sidecars)} of them",
            ".sidecars",
        ),
        Rule(
            "self.kind == 'Runtime' || size(self.servers) == 0",
            "servers chooses among ours and kind {self.kind} brings its own; remove it or choose the kind Runtime",
            ".servers",
        ),
        Rule(
            "self.kind == 'Archipelago' || size(self.command) == 0",
            "command starts an image's own gateway and kind {self.kind} has none; remove it or choose the kind "
            "Archipelago",
            ".command",
        ),
        unique("sidecars", "name"),
    )

    kind: Literal["Archipelago", "Sidecars", "Runtime"] = "Runtime"
    """`Archipelago`: the image serves its own gateway. `Sidecars`: containers beside it. `Runtime`: our servers run
    over the world's files."""
    port: Port = 8080
    """Port of the gateway, where the kind has one."""
    command: list[Argument] = Field(default_factory=list, max_length=64)
    """What starts the gateway in place of its image's command. An argument `{task}` becomes the slug of the trial's
    task; the gateway then starts when a trial has taken the sandbox."""
    ready_timeout_seconds: Seconds = 900.0
    """Time until every server lists its tools; a missing one fails the sandbox."""
    sidecars: list[McpSidecar] = Field(default_factory=list, max_length=16)
    """Servers of the kind `Sidecars`."""
    servers: list[RuntimeServer] = Field(default_factory=list, max_length=16)
    """Servers of the kind `Runtime`; all of ours if empty."""


class ImageVolume(ApiModel):
    """Files from an OCI image, mounted read-only and copied into the world before a trial."""

    image: ImageReference
    """Image that holds the files."""
    source: FilePath = "/"
    """Folder inside the image."""
    target: FilePath = "/workspace"
    """Folder of the world."""


class EgressRule(ApiModel):
    """An address that the sandbox may reach; all others are denied."""

    cidr: Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$", max_length=64)]
    """Range of addresses: `10.0.0.0/8`."""
    ports: list[Port] = Field(default_factory=list, max_length=32)
    """TCP ports; all of them if empty."""


class Inspection(RuledModel):
    """What a world must prove before it is trained in."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.repeats >= 2 || self.maxFlakiness == 0.0",
            "maxFlakiness {self.maxFlakiness} needs repeats of 2 or more to be measured; set repeats, or 0",
            ".repeats",
        ),
    )

    tasks: TaskSet
    """Tasks whose solutions and verifiers are tried."""
    repeats: Positive = 3
    """Verifier runs on the same state, to find flaky ones."""
    max_flakiness: Fraction = 0.0
    """Share of tasks whose repeated verdicts may differ."""
    contamination_ngram: NonNegative = 0
    """Length in words of the n-grams that must not occur in the corpora; 0 does not look."""
    corpora: list[TaskSet] = Field(default_factory=list, max_length=8)
    """Texts that the tasks must not have leaked into."""


class PrePull(ApiModel):
    """Pull the image before it is needed."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Nodes that pull; every node if empty."""
    parallelism: Positive = 10
    """Nodes that pull at once."""


class WorldImageSpec(ApiModel):
    """What the user wants."""

    image: ImageReference
    """Image of the world, by tag or digest, on ECR or any registry; a tag is resolved once and then held."""
    pull_secret: Name | None = None
    """Secret with registry credentials; the operator's own, renewed for ECR, if empty."""
    mcp: Mcp = Mcp()
    """Who serves the tools."""
    populate: list[ImageVolume] = Field(default_factory=list, max_length=16)
    """Files brought in beside the image."""
    harnesses: bool = False
    """Bring the programs of the harnesses `mini-swe-agent`, `opencode`, `codex` and `claude-code` into sandboxes; runs
    with one of them need it. Off, nodes do not pull their image."""
    resources: Resources = Resources()
    """Resources of the world's container."""
    runtime_class: Name | None = None
    """RuntimeClass of the pods; gVisor where the cluster has it, if empty."""
    egress: list[EgressRule] = Field(default_factory=list, max_length=64)
    """Addresses that the sandbox may reach; none if empty."""
    workdir: FilePath = "/workspace"
    """Folder in which agents work."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the world's container."""
    pre_pull: PrePull | None = None
    """Pull the image before it is needed; off if empty."""
    inspection: Inspection | None = None
    """What the world must prove first; nothing if empty."""


class InspectionResult(ApiModel):
    """What an inspection found."""

    passed: bool
    """Whether the world may be trained in."""
    tasks: NonNegative
    """Tasks tried."""
    trials: NonNegative
    """Trials made of them."""
    faults: dict[str, NonNegative] = Field(default_factory=dict, max_length=16)
    """Tasks by kind of fault: `{SolutionFails: 2}`."""
    first: list[Annotated[str, Field(max_length=512)]] = Field(default_factory=list, max_length=8)
    """The first faults, the gravest before the others, a sentence each; the report has them all."""


class InspectionStatus(InspectionResult):
    """What the inspection of this world found."""

    digest: Annotated[str, Field(max_length=128)]
    """Digest of the image that was inspected."""
    revision: Annotated[str, Field(max_length=64)]
    """Tells what was inspected, image, tools and tasks; with another one the world is inspected anew."""
    report: Annotated[str, Field(max_length=1024)]
    """Where the report lies, or the command that shows it."""


class WorldImageStatus(ApiModel):
    """What is observed of a world."""

    observed_generation: NonNegative = 0
    """`metadata.generation` that this status is about."""
    conditions: list[Condition] = Field(default_factory=list, max_length=16)
    """Statements about the world, at most one of a type."""
    image: Annotated[str, Field(max_length=512)] | None = None
    """`spec.image` as it was when `digest` was looked up; another one is looked up anew."""
    digest: Annotated[str, Field(max_length=128)] | None = None
    """Digest that the tag stood for when it was resolved."""
    nodes_cached: NonNegative = 0
    """Nodes that hold the image."""
    nodes_wanted: NonNegative = 0
    """Nodes that shall hold the image."""
    inspection: InspectionStatus | None = None
    """What the inspection found."""


class WorldImage(RuledModel):
    """One simulated company."""

    rules: ClassVar[tuple[Rule, ...]] = (LABEL_NAME_RULE,)

    api_version: ApiVersion
    """API group and version."""
    kind: Literal["WorldImage"]
    """Kind of the object."""
    metadata: ObjectMeta
    """Name, namespace, labels, annotations."""
    spec: WorldImageSpec
    """What the user wants."""
    status: WorldImageStatus | None = None
    """What was observed; written by the operator alone."""
