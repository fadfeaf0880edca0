"""What counts as a reward, and what does not."""

import pytest

from seatrial_rollout.trials.rewards import VerifierError, parse_rewards


def test_every_figure_of_the_json_file_is_kept() -> None:
    assert parse_rewards('{"reward": 0.5, "files": 3}', None) == {"reward": 0.5, "files": 3.0}


def test_two_files_that_agree_are_one_reward() -> None:
    assert parse_rewards('{"reward": 1, "files": 3}', "1.0\n") == {"reward": 1.0, "files": 3.0}


@pytest.mark.parametrize("text", ["0.25", " 0.25\n", "2.5e-1"])
def test_a_number_in_the_text_file_is_the_reward(text: str) -> None:
    assert parse_rewards(None, text) == {"reward": 0.25}


def test_a_bare_number_in_the_json_file_is_the_reward() -> None:
    assert parse_rewards("0.75", None) == {"reward": 0.75}


@pytest.mark.parametrize(
    ("reward_json", "reward_text", "complaint"),
    [
        (None, None, "no reward.json and no reward.txt"),
        ("", None, "which is no JSON"),
        ("Traceback (most recent call last)", None, "holds 'Traceback"),
        ("{}", None, "no reward, only nothing"),
        ('{"score": 1}', None, "no reward, only score"),
        ('{"reward": NaN}', None, "reward is nan"),
        ('{"reward": 1, "files": Infinity}', None, "files is inf"),
        ('{"reward": 1e999}', None, "reward is inf"),
        ('{"reward": "1"}', None, "which is no number"),
        ('{"reward": true}', None, "which is no number"),
        ('{"reward": null}', None, "which is no number"),
        ('{"reward": {"value": 1}}', None, "which is no number"),
        ("[1, 2]", None, "which is no number"),
        (f'{{"reward": 1{"0" * 400}}}', None, "not finite"),
        (None, "", "which is no number"),
        (None, "nan", "not finite"),
        ('{"reward": 1}', "0", "reward.json says 1, reward.txt '0'"),
        ('{"reward": 1}', "", "which is no number"),
        (None, "1 of 3 passed", "which is no number"),
    ],
)
def test_anything_else_is_a_failed_verifier_and_never_a_reward(
    reward_json: str | None, reward_text: str | None, complaint: str
) -> None:
    with pytest.raises(VerifierError, match=complaint):
        parse_rewards(reward_json, reward_text)


def test_a_long_text_is_quoted_in_part() -> None:
    with pytest.raises(VerifierError) as caught:
        parse_rewards(None, "x" * 100_000)
    assert len(str(caught.value)) < 400
