"""The Tinker backend through the real SDK, against a stand-in for the service that computes with a tiny model."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from seatrial_api.errors import CorruptionError, InvalidInputError
from seatrial_api.spec.model import HuggingFaceSource, LoRA, Source
from seatrial_trainer.policy.backends import start_backend
from seatrial_trainer.policy.protocol import PolicyBackend
from seatrial_trainer.policy.ranks import Ranks
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend
from tests.integration.policy.conftest import make_sequences, make_setup
from tests.megatron_ranks import Case, Seen, dppo, look, step
from tests.threaded_server import threaded_server
from tests.tinker_service import ALPHA, KEY, TinkerService

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # connections that the SDK lets go of

MODEL = "test/tiny"


@pytest.fixture(scope="module")
def service(model_path: Path) -> Iterator[TinkerService]:
    stand_in = TinkerService(model_path, MODEL)
    with threaded_server(stand_in.app) as url, pytest.MonkeyPatch.context() as environment:
        environment.setenv("TINKER_BASE_URL", url)
        environment.setenv("TINKER_API_KEY", KEY)
        environment.setenv("TINKER_TELEMETRY", "0")
        yield stand_in


def setup(repo: str = MODEL) -> PolicySetup:
    plain = make_setup(backend="tinker", lora=LoRA(rank=4, alpha=ALPHA))
    source = Source(hf=HuggingFaceSource(repo=repo))
    return replace(plain, model=plain.model.model_copy(update={"source": source}))


@pytest.fixture(scope="module")
def backend(service: TinkerService, model_path: Path) -> Iterator[PolicyBackend]:
    started = start_backend(setup(), model_path, Ranks())
    yield started
    started._service.close("success").result()  # type: ignore[attr-defined]  # its process ends with a backend elsewhere
    gc.collect()  # what the SDK left, while its warnings are passed over


@pytest.fixture(scope="module")
def both(backend: PolicyBackend, model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    """What the service gave, and what the torch backend gives with the same adapters."""
    sequences = make_sequences()
    case = Case.of("tinker", setup(), model_path, sequences)
    theirs = TorchBackend(replace(setup(), trainer=make_setup().trainer), model_path)
    return look(backend, case, tmp_path_factory.mktemp("ours")), look(theirs, case, tmp_path_factory.mktemp("theirs"))


def test_probabilities_and_curve_are_those_of_the_torch_backend(both: tuple[Seen, Seen]) -> None:
    ours, theirs = both
    for one, other in zip(ours.logprobs + ours.reference, theirs.logprobs + theirs.reference, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    for mine, other_step in zip(ours.steps, theirs.steps, strict=True):
        told = {name: value for name, value in mine.items() if name != "entropy"}
        assert told == pytest.approx({name: other_step[name] for name in told}, rel=1e-4, abs=1e-5)
        assert mine["entropy"] > 0, "an estimate: the service tells log probabilities of what was sampled alone"


def test_engines_get_weights_with_the_adapters_in_them(both: tuple[Seen, Seen]) -> None:
    ours, theirs = both
    assert ours.weights.keys() == theirs.weights.keys()
    for name, weight in ours.weights.items():
        torch.testing.assert_close(weight, theirs.weights[name], rtol=1e-4, atol=2e-4)


def test_a_checkpoint_goes_on_with_its_optimiser(both: tuple[Seen, Seen]) -> None:
    first, again = both[0].next_steps
    assert first == again


def test_an_export_is_a_model_directory(backend: PolicyBackend, both: tuple[Seen, Seen], tmp_path: Path) -> None:
    assert backend.export(tmp_path / "model") > 0
    ids = [1, 2, 3, 4]
    logits = AutoModelForCausalLM.from_pretrained(tmp_path / "model")(torch.tensor([ids])).logits[0, :-1]
    found = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert backend.logprobs([ids])[0][1:] == pytest.approx(found, abs=1e-5)


def test_a_loss_that_is_not_finite_changes_nothing(backend: PolicyBackend, both: tuple[Seen, Seen]) -> None:
    ids = [[1, 2, 3, 4]]
    before = backend.logprobs(ids)
    broken = [replace(sequence, advantage=float("nan")) for sequence in make_sequences(1, 1)]
    backend.forward_backward(dppo(broken))
    assert backend.optim_step(1e-2).skipped
    assert backend.logprobs(ids) == before
    step(backend, dppo(make_sequences(1, 2)))
    assert backend.logprobs(ids) != before


def test_the_service_is_asked_for_no_adapter_of_the_head(service: TinkerService, both: tuple[Seen, Seen]) -> None:
    policy, reference = service.created
    assert policy["lora_config"] == reference["lora_config"]
    assert policy["lora_config"]["rank"] == 4
    assert policy["lora_config"]["train_unembed"] is False


def test_a_model_that_the_service_does_not_have_is_refused_by_name(
    service: TinkerService, both: tuple[Seen, Seen], model_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=r"did not open a session to train test/other.*no model test/other"):
        start_backend(setup("test/other"), model_path, Ranks())


def test_a_missing_key_is_told(
    service: TinkerService, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidInputError, match="TINKER_API_KEY"):
        start_backend(setup(), model_path, Ranks())


def test_a_model_without_adapters_or_a_name_is_refused_by_field(model_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"trainer\.backend: tinker .* model\.source\.hf and model\.lora"):
        start_backend(make_setup(backend="tinker"), model_path, Ranks())


def test_a_checkpoint_of_another_backend_is_refused(backend: PolicyBackend, tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match=str(tmp_path)):
        backend.load(tmp_path)
