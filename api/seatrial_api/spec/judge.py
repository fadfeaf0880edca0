"""Judge models: who answers, with which keys, how often, and for how much."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from seatrial_api.base import ApiModel, Name, NonNegative, Positive, Seconds
from seatrial_api.rules import Rule, RuledModel, exactly_one, unique

ModelId = Annotated[str, Field(min_length=1, max_length=128)]
"""A model's name, as an API has it."""


class JudgeKey(RuledModel):
    """Where one key of a provider is found; never the key itself."""

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("key", "env", "secret"),)

    env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)] | None = None
    """Environment variable of the driver."""
    secret: Name | None = None
    """Secret with `apiKey`."""

    @property
    def variable(self) -> str:
        """Environment variable of the head that holds it; the operator fills that of a Secret."""
        return self.env or f"SEATRIAL_JUDGE_KEY_{(self.secret or '').upper().replace('-', '_')}"


class JudgeKeyLimits(ApiModel):
    """What one key may ask for; the gateway stays below it whatever the number of trials."""

    requests: Positive = 500
    """Requests per window."""
    tokens: Positive | None = None
    """Prompt and completion tokens per window; no bound if empty."""
    window_seconds: Seconds = 60.0
    """Length of the window; it slides."""
    concurrency: Positive = 32
    """Requests under way at once."""


class JudgeModel(ApiModel):
    """A model that a provider serves, and its price."""

    name: ModelId
    """As tasks ask for it; providers that serve the same name stand in for each other."""
    upstream: ModelId | None = None
    """As the provider calls it; the same if empty."""
    prompt_million_tokens: Annotated[float, Field(ge=0)] = 0.0
    """Dollars for a million prompt tokens."""
    completion_million_tokens: Annotated[float, Field(ge=0)] = 0.0
    """Dollars for a million completion tokens."""


class JudgeProvider(RuledModel):
    """One service with keys and models."""

    rules: ClassVar[tuple[Rule, ...]] = (unique("models", "name"),)

    name: Name
    """Told in logs."""
    api: Literal["OpenAI", "Anthropic"] = "OpenAI"
    """`OpenAI` chat completions, or `Anthropic` messages."""
    base_url: Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=512)]
    """Address in front of `/chat/completions` or `/messages`: `https://api.openai.com/v1`."""
    keys: list[JudgeKey] = Field(min_length=1, max_length=32)
    """Used in turn."""
    key_limits: JudgeKeyLimits = JudgeKeyLimits()
    """Of each key."""
    models: list[JudgeModel] = Field(min_length=1, max_length=32)
    """What it serves."""


class JudgeBudget(ApiModel):
    """Bounds, whichever is reached first; an empty one bounds nothing. What the cache answers is free."""

    requests: Positive | None = None
    """Requests to providers that succeeded."""
    tokens: Positive | None = None
    """Prompt and completion tokens."""
    dollars: Annotated[float, Field(gt=0)] | None = None
    """By the models' prices."""


class JudgeRetries(ApiModel):
    """How long the gateway tries before it gives a verdict up."""

    attempts: Positive = 10
    """Sends of one request, over all keys."""
    first_seconds: Seconds = 0.5
    """Mean wait before the second send; it doubles each time. What a provider asks for with Retry-After goes before."""
    max_seconds: Seconds = 30.0
    """Longest wait."""
    send_timeout_seconds: Seconds = 180.0
    """Time of one send."""
    timeout_seconds: Seconds = 600.0
    """Time of one request with all its sends."""


class JudgeSpec(RuledModel):
    """Models that grade trials, behind a gateway that holds their keys."""

    rules: ClassVar[tuple[Rule, ...]] = (
        unique("providers", "name"),
        Rule(
            "self.providers.exists(provider, provider.models.exists(model, model.name == self.model))",
            "no provider serves model {self.model}; add it to the models of one",
            ".model",
        ),
        Rule(
            "!(has(self.trialBudget.dollars) || has(self.runBudget.dollars)) || self.providers.all(provider, "
            "provider.models.all(model, model.promptMillionTokens + model.completionMillionTokens > 0.0))",
            "a budget in dollars counts nothing for a model without a price; set the prices of every model, or bound "
            "tokens instead",
            ".providers",
        ),
    )

    providers: list[JudgeProvider] = Field(min_length=1, max_length=8)
    """Who answers."""
    model: ModelId
    """What rubrics are graded with, and what a verifier is told to use."""
    votes: Annotated[int, Field(ge=1, le=31)] = 1
    """Verdicts per criterion of a rubric, of which the majority counts; odd, or a tie fails the criterion."""
    trial_budget: JudgeBudget = JudgeBudget(requests=1000)
    """Of one trial's verification."""
    run_budget: JudgeBudget = JudgeBudget()
    """Of the whole run, resumptions included."""
    retries: JudgeRetries = JudgeRetries()
    """What is done about requests that fail."""
    cache_entries: NonNegative = 10_000
    """Answers that are kept and given again to the same question; 0 asks every time."""
    log_questions: bool = False
    """Keep the questions in the audit log too, not only their hashes and the answers."""
