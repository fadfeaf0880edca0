"""What goes to an engine and what comes back."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine is reached; survives a restart of the vLLM process behind it."""

    engine_id: str
    url: str
    """Base URL of the engine's gateway, without a trailing slash."""
    token: str
    """Bearer token of the run."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Continue a token prompt."""

    token_ids: list[int]
    max_tokens: int
    temperature: float
    top_p: float = 1.0
    stop_token_ids: list[int] = field(default_factory=list)
    routed_from: int = 0
    """First token of the prompt whose experts are asked for, where the engine says them at all."""
    structural_tag: str = ""
    """Grammar that what is sampled has to fit, as XGrammar's JSON; anything fits if empty."""
    trial_id: str = ""
    """For logs and sticky routing."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampled tokens; the three lists run in parallel, one entry a token, the stop token included."""

    token_ids: list[int]
    logprobs: list[float]
    """Natural-log probabilities under the distribution that was sampled from."""
    weight_versions: list[int]
    finish_reason: str
    """`stop`, `length` or `abort`."""
    waited_seconds: float = 0.0
    """Time in which the engine made no progress for reasons of ours: queue, weight sync, restart. Not charged."""
    num_cached_tokens: int = 0
    """Prompt tokens served from the prefix cache."""
    routed_experts: str = ""
    """Experts of the prompt's tokens from `routed_from` on and of all sampled tokens but the last: base64 of a NumPy
    file, as vLLM writes it. Empty where the engine does not say."""
