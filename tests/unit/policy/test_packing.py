from hypothesis import given
from hypothesis import strategies as st

from seatrial_trainer.policy.packing import Pack, plan_padded, plan_shared, share_of_rank

sequences_strategy = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)
budgets = st.integers(1, 40)


def distinct_prefixes(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(sequence[: i + 1]) for sequence in sequences for i in range(len(sequence))}


def members(packs: list[Pack]) -> list[int]:
    return sorted(member.sequence for pack in packs for member in pack.members)


@given(sequences=sequences_strategy, budget=budgets)
def test_every_sequence_is_in_exactly_one_pack(sequences: list[list[int]], budget: int) -> None:
    assert members(plan_shared(sequences, budget)) == list(range(len(sequences)))
    assert members(plan_padded(sequences, budget)) == list(range(len(sequences)))


@given(sequences=sequences_strategy, budget=budgets)
def test_a_pack_keeps_the_budget_unless_one_sequence_alone_is_longer(sequences: list[list[int]], budget: int) -> None:
    for pack in [*plan_shared(sequences, budget), *plan_padded(sequences, budget)]:
        assert pack.num_positions <= budget or len(pack.members) == 1


@given(sequences=sequences_strategy, budget=budgets)
def test_a_pack_computes_each_distinct_prefix_once(sequences: list[list[int]], budget: int) -> None:
    for pack in plan_shared(sequences, budget):
        own = [sequences[member.sequence] for member in pack.members]
        assert pack.num_positions == len(distinct_prefixes(own))
        assert pack.num_padding == 0


@given(sequences=sequences_strategy, budget=budgets)
def test_what_a_member_shares_is_what_it_and_the_one_before_begin_with(sequences: list[list[int]], budget: int) -> None:
    for pack in plan_shared(sequences, budget):
        assert pack.members[0].num_shared == 0
        for before, member in zip(pack.members, pack.members[1:], strict=False):
            a, b = sequences[before.sequence], sequences[member.sequence]
            assert a[: member.num_shared] == b[: member.num_shared]


@given(sequences=sequences_strategy, budget=budgets)
def test_padding_is_what_a_pack_computes_beyond_its_sequences(sequences: list[list[int]], budget: int) -> None:
    for pack in plan_padded(sequences, budget):
        own = sum(len(sequences[member.sequence]) for member in pack.members)
        assert pack.num_positions - pack.num_padding == own


@given(sequences=sequences_strategy, num_ranks=st.integers(1, 4))
def test_ranks_share_the_packs_among_them(sequences: list[list[int]], num_ranks: int) -> None:
    packs = plan_shared(sequences, budget=8)
    shares = [share_of_rank(packs, rank, num_ranks) for rank in range(num_ranks)]
    assert members([pack for share in shares for pack in share]) == list(range(len(sequences)))


def test_work_is_balanced_over_ranks() -> None:
    packs = [Pack([], size) for size in (5, 9, 4, 6, 8)]
    assert [sum(p.num_positions for p in share_of_rank(packs, rank, 2)) for rank in (0, 1)] == [18, 14]


def test_no_sequences_make_no_packs() -> None:
    assert plan_shared([], 8) == []
    assert plan_padded([], 8) == []


def test_a_groups_prompt_is_computed_once() -> None:
    prompt = list(range(100))
    (pack,) = plan_shared([[*prompt, 200 + i] for i in range(8)], budget=1000)
    assert pack.num_positions == 100 + 8


def test_past_its_comfortable_size_a_pack_takes_only_sequences_that_share_much_of_it() -> None:
    prompt = list(range(60))
    family = [[*prompt, 100 + i, *range(20)] for i in range(6)]
    stranger = [999] * 30
    packs = plan_shared([*family, stranger], budget=400, comfortable=100)
    assert [len(pack.members) for pack in packs] == [6, 1]
    assert packs[0].num_positions == 60 + 6 * 21
    assert [len(pack.members) for pack in plan_shared([*family, stranger], budget=400)] == [7]
    assert [len(pack.members) for pack in plan_shared(family, budget=130, comfortable=100)] == [3, 3]
