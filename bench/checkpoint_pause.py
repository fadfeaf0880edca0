"""How long a checkpoint stops the steps, what it costs those after it, and how long a resumption takes.

    python -m bench.checkpoint_pause [--rounds N]

One rank of the torch backend with some 50 million parameters in 32 bits, its checkpoint store on this machine's disk:
step, hold, step while a thread writes what was held, digests, manifest; then what a resumed attempt does, which is to
verify the newest checkpoint and to load it. Seconds are medians, a GB is one of what the checkpoint has on disk.
Starting processes and the model, and training the logged batches again, come on top of a resumption.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from bench.megatron_backend import GB, make_large_model, one_sequence
from bench.trainer_tokens import make_model
from seatrial_api.spec.algorithm import OptimizerSpec
from seatrial_api.spec.backend import TrainerSpec
from seatrial_api.spec.model import ContextLength, ModelSpec, Source
from seatrial_trainer.policy.setup import PolicySetup
from seatrial_trainer.policy.torch_backend import TorchBackend
from seatrial_trainer.storage.checkpoints import CheckpointStore

NUM_TOKENS = 256
"""Tokens of a step."""


class Bench:
    """One policy, one folder of checkpoints, and what was measured."""

    def __init__(self, folder: Path) -> None:
        model = folder / "model"
        make_model(model)
        make_large_model(model)
        spec = ModelSpec(source=Source(path="unused"), dtype="float32", context_length=ContextLength(train=NUM_TOKENS))
        self._backend = TorchBackend(PolicySetup(spec, TrainerSpec(), OptimizerSpec()), model)
        self._store = CheckpointStore(folder / "checkpoints")
        self._minibatch = one_sequence(NUM_TOKENS)
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._step()  # the first one makes the moments
        self._thread = ThreadPoolExecutor(1)

    def round(self, version: int) -> float:
        """A checkpoint beside steps, and back; returns its GB."""
        self._timed("a step", self._step)
        with ExitStack() as saving:
            folder = saving.enter_context(self._store.writing(version, {}))
            started = time.monotonic()
            write = self._timed(
                "the steps stand still", lambda: self._backend.hold(folder / "policy", folder / "model")
            )
            writing = self._thread.submit(self._timed, "files, behind the steps", write)
            while not writing.done():
                self._timed("a step while a checkpoint is written", self._step)
            writing.result()
            self._timed("digests and manifest, behind the steps", saving.close)
        self.seconds["until the checkpoint counts"].append(time.monotonic() - started)
        path = self._timed("verify", self._latest)
        self._timed("load", lambda: self._backend.load(path / "policy"))
        self._store.prune(keep=1)
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / GB

    def _latest(self) -> Path:
        checkpoint = self._store.latest()
        assert checkpoint is not None
        return checkpoint.path

    def _step(self) -> None:
        self._backend.forward_backward(self._minibatch)
        self._backend.optim_step(1e-9)

    def _timed[T](self, what: str, work: Callable[[], T]) -> T:
        started = time.monotonic()
        result = work()
        self.seconds[what].append(time.monotonic() - started)
        return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        gigabytes = [bench.round(version) for version in range(1, arguments.rounds + 1)][-1]
    print(f"a checkpoint of {gigabytes:.2f} GB\n\n| what | s | s per GB |\n| --- | ---: | ---: |")
    for what, seconds in bench.seconds.items():
        median = statistics.median(seconds)
        print(f"| {what} | {median:.2f} | {'' if 'a step' in what else f'{median / gigabytes:.2f}'} |")


if __name__ == "__main__":
    main()
