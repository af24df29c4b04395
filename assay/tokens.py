"""A model's own tokenizer, for budgets and cuts. It is read from the model's folder by the light ``tokenizers`` library."""

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from assay.errors import SetupError
from assay.ports import Tokenizer
from assay.types import Message

# Passages and their sentences are counted more than once for a question, and good ones for many questions.
REMEMBERED, REMEMBERED_CHARS = 4_096, 4_000
# What a chat template adds, at most: around each message, and around all of them.
MESSAGE_TOKENS, TEMPLATE_TOKENS = 8, 48


def tokenizer_of(model: str) -> "ModelTokenizer | EstimatedTokenizer":
    """That of a model folder or id; for a model without either (""), the estimate."""
    return ModelTokenizer(model) if model else EstimatedTokenizer()


def room(
    tokenizer: Tokenizer, context_tokens: int | None, output: int, messages: Sequence[Message], more: str = ""
) -> int:
    """The tokens that a model's context has left beside these messages, what else stands in the prompt (``more``), and an
    ``output``: below 0 where they do not fit, and more than there will ever be where the context is not known."""
    if context_tokens is None:
        return sys.maxsize
    said = sum(tokenizer.count(message.content) + MESSAGE_TOKENS for message in messages)
    return context_tokens - output - said - tokenizer.count(more) - TEMPLATE_TOKENS


class EstimatedTokenizer:
    """``ports.Tokenizer`` for a model whose own is not at hand: a token for every three bytes of UTF-8, which is more than
    most vocabularies need, so that a budget holds."""

    BYTES = 3

    def count(self, text: str) -> int:
        return -(-len(text.encode()) // self.BYTES)

    def truncate(self, text: str, tokens: int) -> str:
        return text.encode()[: self.BYTES * max(0, tokens)].decode(errors="ignore")


class ModelTokenizer:
    """``ports.Tokenizer`` of a model folder, or of a Hugging Face model id."""

    def __init__(self, model: str) -> None:
        from tokenizers import Tokenizer

        file = Path(model) / "tokenizer.json"
        if Path(model).is_dir() and not file.exists():
            raise SetupError(
                f"The model folder has no tokenizer.json: {Path(model).name}. Save its fast tokenizer there."
            )
        self._tokenizer = Tokenizer.from_file(str(file)) if file.exists() else Tokenizer.from_pretrained(model)
        # A saved tokenizer may cut or pad by itself; a budget needs the true count.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._known = lru_cache(REMEMBERED)(self._read)

    def count(self, text: str) -> int:
        return len(self._ends(text))

    def truncate(self, text: str, tokens: int) -> str:
        """The longest start of ``text`` of at most ``tokens`` tokens; text that fits comes back as it is."""
        ends = self._ends(text)
        return text if len(ends) <= tokens else text[: ends[tokens - 1]] if tokens > 0 else ""

    def _ends(self, text: str) -> "array[int]":
        return self._known(text) if len(text) <= REMEMBERED_CHARS else self._read(text)

    def _read(self, text: str) -> "array[int]":
        """The character where each token ends."""
        return array("L", [end for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets])
