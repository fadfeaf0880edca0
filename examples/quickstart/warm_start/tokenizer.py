"""A tokenizer with one token per word of the office, and bytes for all the rest of the world."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
MIN_COUNT = 3
"""A piece that occurs less often is written as bytes."""
_WORD = r"[\p{L}_]+(\.[a-z]+)?|\p{N}{1,2}|[^\p{L}\p{N}]+"
"""Words, with a file's suffix; numbers two digits at a time; whatever stands between."""


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Give every piece that occurs often enough a token of its own.

    There are no merges: a piece is either a token as a whole or falls apart into bytes. So no vocabulary is spent
    on halves of words, which a model of this size could not afford, and every string can still be written.
    """
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    markers = Regex("|".join(marker.replace("|", r"\|") for marker in (END_OF_TEXT, TURN_START, TURN_END, *_MARKERS)))
    outside_markers = pre_tokenizers.Sequence([pre_tokenizers.Split(markers, "removed"), splitter])
    counts = Counter(piece for text in texts for piece, _ in outside_markers.pre_tokenize_str(text))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = sorted(piece for piece, count in counts.items() if count >= MIN_COUNT and piece not in alphabet)
    special = [END_OF_TEXT, TURN_START, TURN_END]
    vocabulary = {token: number for number, token in enumerate([*special, *_MARKERS, *alphabet, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in _MARKERS])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, context_length: int) -> None:
    """Write what `AutoTokenizer` reads; the chat template is a file of its own in the same folder."""
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
