"""TRL's part of trainer_tokens.py: runs in TRL's own environment, reads a task and writes a result for each step."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

NUM_STEPS = 3


class TimedTrainer(GRPOTrainer):
    """Keeps apart the time for generation and rewards, which is not training."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.ended_generation: list[float] = []
        self.began_generation: list[float] = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.began_generation.append(time.process_time())
        outputs = super()._generate_and_score_completions(inputs)
        self.ended_generation.append(time.process_time())
        return outputs


def make_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One word a token; the trainer only decodes with it."""
    words = {f"w{i}": i for i in range(vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w2"))  # noqa: S106  a token, not a secret
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w1", unk_token="w2")  # noqa: S106


def main() -> None:
    """Train the task's batch some times."""
    torch.set_num_threads(1)
    task = json.loads(Path(sys.argv[1]).read_text())
    groups, settings = task["groups"], task["settings"]
    num_trajectories = sum(len(group) for group in groups)
    longest = max(len(t["completion"]) for group in groups for t in group)

    def rollout(prompts: list[str], _trainer: GRPOTrainer) -> dict[str, list[Any]]:
        left = {str(i): list(group) for i, group in enumerate(groups)}
        taken = [left[prompt].pop(0) for prompt in prompts]
        return {
            "prompt_ids": [t["prompt"] for t in taken],
            "completion_ids": [t["completion"] for t in taken],
            "logprobs": [[0.0] * len(t["completion"]) for t in taken],
            "env_mask": [t["mask"] for t in taken],
            "verified": [t["reward"] for t in taken],
        }

    def reward(verified: list[float], **_columns: Any) -> list[float]:
        return verified

    trainer = TimedTrainer(
        model=task["model"],
        reward_funcs=reward,
        rollout_func=rollout,
        processing_class=make_tokenizer(634),
        train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(len(groups))]}),
        args=GRPOConfig(
            output_dir=task["output"],
            per_device_train_batch_size=settings["batch_size"],
            gradient_accumulation_steps=num_trajectories // settings["batch_size"],
            num_generations=len(groups[0]),
            max_completion_length=longest,
            max_steps=NUM_STEPS,
            learning_rate=1e-9,
            lr_scheduler_type="constant",
            scale_rewards="none",
            loss_type="dapo",
            beta=0.0,
            bf16=settings["bf16"],
            gradient_checkpointing=settings["gradient_checkpointing"],
            optim="adamw_torch_fused",
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"},
        ),
    )
    trainer.train()
    ends = [*trainer.began_generation[1:], time.process_time()]
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    result = [
        {"cpu_seconds": end - start, "grad_norm": norm}
        for start, end, norm in zip(trainer.ended_generation, ends, norms, strict=True)
    ]
    (Path(task["output"]) / "result.json").write_text(json.dumps(result[:-1]))  # the last step also ends the run


if __name__ == "__main__":
    main()
