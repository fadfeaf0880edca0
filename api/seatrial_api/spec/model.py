"""Which model is trained, and where it comes from."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from seatrial_api.base import ApiModel, FilePath, Name, Positive
from seatrial_api.rules import Rule, RuledModel, exactly_one


class HuggingFaceSource(ApiModel):
    """A repository on the Hugging Face hub, or in its local cache."""

    repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$", max_length=256)]
    """Repository id: `Qwen/Qwen3-0.6B`."""
    revision: Annotated[str, Field(min_length=1, max_length=256)] = "main"
    """Branch, tag or commit."""


class S3Source(ApiModel):
    """Objects under a prefix of an S3 bucket."""

    uri: Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]+(/.*)?$", max_length=1024)]
    """`s3://bucket/prefix`."""
    endpoint_url: Annotated[str, Field(pattern=r"^https?://.+$", max_length=1024)] | None = None
    """Endpoint of an S3-compatible store; AWS if empty."""
    secret: Name | None = None
    """Secret with `accessKeyId` and `secretAccessKey`; the pod's own identity if empty."""

    def below(self, path: str) -> Self:
        """The prefix `path` below this one."""
        return self.model_copy(update={"uri": f"{self.uri.rstrip('/')}/{path}"})


class PvcSource(RuledModel):
    """A folder on a PersistentVolumeClaim in the run's namespace."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!self.path.startsWith('/') && !('..' in self.path.split('/'))",
            "path {self.path} starts at the volume's root and stays below it; write it without a leading / and without "
            "..",
            ".path",
        ),
    )

    claim: Name
    """Name of the PersistentVolumeClaim."""
    path: FilePath = "."
    """Folder inside the volume."""


class Source(RuledModel):
    """Where files come from: exactly one of the four."""

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("a source", "path", "hf", "s3", "pvc"),)

    path: FilePath | None = None
    """A folder on the machine; a relative path starts at the manifest."""
    hf: HuggingFaceSource | None = None
    """The Hugging Face hub."""
    s3: S3Source | None = None
    """An S3 bucket."""
    pvc: PvcSource | None = None
    """A PersistentVolumeClaim."""


class ContextLength(ApiModel):
    """How many tokens a conversation may hold."""

    train: Positive
    """Context length in tokens while training."""
    eval: Positive | None = None
    """Context length in tokens in Evaluate stages; as in training if empty."""


ModuleName = Annotated[str, Field(min_length=1, max_length=128)]
"""Name of a module, or the end of one."""


class LoRA(ApiModel):
    """Train low-rank adapters instead of all weights."""

    rank: Positive = 32
    """Rank of the adapters."""
    alpha: Positive = 64
    """Scale of the adapters, over their rank."""
    target_modules: Annotated[list[ModuleName], Field(min_length=1, max_length=64)] | None = None
    """Linear layers that get an adapter, by name or the end of one; all but the output layer if empty."""


class ModelSpec(ApiModel):
    """The policy: its weights, tokenizer and chat template."""

    source: Source
    """Folder or repository in Hugging Face layout: config, safetensors, tokenizer with chat template."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of the weights in the engines and of the trainer's forward pass."""
    context_length: ContextLength
    """Context lengths in tokens."""
    tool_call_format: Literal["hermes", "llama3_json", "glm4", "qwen3_coder", "Auto"] = "Auto"
    """How the model writes tool calls; `Auto` tells it from the chat template."""
    lora: LoRA | None = None
    """Adapters; all weights are trained if empty."""
