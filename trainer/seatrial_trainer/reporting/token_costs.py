"""What stages' tokens cost by tier and harness, and why tokens were read again: lines for a page or a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seatrial_api.ceilings import Usage, dollars
from seatrial_api.spec.operations import CostSpec
from seatrial_api.stage_report import StageReport, TokenUse


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One harness in one stage, or the whole run."""

    stage: str
    use: TokenUse
    prices: CostSpec

    @property
    def cached_dollars(self) -> float:
        """Of prompt tokens from a prefix cache."""
        return dollars(Usage(cached_prompt_tokens=self.use.cached_prompt_tokens), self.prices)

    @property
    def prompt_dollars(self) -> float:
        """Of prompt tokens that were computed."""
        return dollars(Usage(prompt_tokens=self.use.prompt_tokens), self.prices)

    @property
    def completion_dollars(self) -> float:
        """Of sampled tokens."""
        return dollars(Usage(completion_tokens=self.use.completion_tokens), self.prices)

    @property
    def dollars(self) -> float:
        """Of all three."""
        return self.cached_dollars + self.prompt_dollars + self.completion_dollars

    @property
    def hit_rate(self) -> str:
        """Share of prompt tokens that came from a prefix cache."""
        return "" if self.use.hit_rate is None else f"{self.use.hit_rate:.1%}"

    @property
    def read_again(self) -> str:
        """What share of the computed prompt tokens an engine had read before, by why it had to again."""
        whole = max(self.use.prompt_tokens, 1)
        most = sorted(self.use.read_again.items(), key=lambda item: -item[1])
        return ", ".join(f"{why} {tokens / whole:.0%}" for why, tokens in most)


def token_lines(reports: Sequence[StageReport], prices: CostSpec) -> list[TokenLine]:
    """A line for each stage and harness, and one for all of them if there are several."""
    lines = list(_lines(reports, prices))
    total = sum((line.use for line in lines), TokenUse(harness="all"))
    return [*lines, TokenLine("all", total, prices)] if len(lines) > 1 else lines


def _lines(reports: Sequence[StageReport], prices: CostSpec) -> Iterator[TokenLine]:
    return (TokenLine(report.stage, use, prices) for report in reports for use in report.tokens)
