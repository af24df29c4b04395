"""A model's own tokenizer, for budgets and cuts. It is read from the model's folder by the light ``tokenizers`` library."""

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.errors import SetupError
from assay.ports import Tokenizer
from assay.types import Message

# Passages and their sentences are counted more than once for a question, and good ones for many questions.
REMEMBERED, REMEMBERED_CHARS = 4_096, 4_000
# What a chat template adds: around each message, and around all of them. Of those looked at, gpt-oss's adds most (97).
MESSAGE_TOKENS, TEMPLATE_TOKENS = 8, 128
# A text of more characters for each of so many tokens is taken to have more tokens, without counting.
CHARS = 8


def tokenizer_of(model: str) -> "ModelTokenizer | EstimatedTokenizer":
    """That of a model folder or id; for a model without either (""), the estimate."""
    return ModelTokenizer(model) if model else EstimatedTokenizer()


def tools_indent(model: str) -> int | None:
    """By how much a model's chat template indents the schemas of tools, as Llama 3's does, which makes them half as long again;
    of a model whose folder is not at hand, the worst is taken."""
    files = (Path(model) / name for name in ("chat_template.jinja", "tokenizer_config.json"))
    texts = [file.read_text(encoding="utf-8") for file in files if model and file.is_file()]
    return 4 if not texts or any("indent" in text for text in texts) else None


def room(
    tokenizer: Tokenizer, context_tokens: int | None, output: int, messages: Sequence[Message], more: str = ""
) -> int:
    """The tokens that a model's context has left beside these messages, what else stands in the prompt (``more``), and an
    ``output``: below 0 where they do not fit, and more than there will ever be where the context is not known."""
    if context_tokens is None:
        return sys.maxsize
    if (chars := sum(len(message.content) for message in messages)) > CHARS * context_tokens:
        return context_tokens - chars // CHARS  # it would take long to count, on the loop of those who wait
    said = sum(tokenizer.count(message.content) + MESSAGE_TOKENS for message in messages)
    return context_tokens - output - said - tokenizer.count(more) - TEMPLATE_TOKENS


class EstimatedTokenizer:
    """``ports.Tokenizer`` for a model whose own is not at hand: a token for every three letters and spaces of ASCII, for every
    other character of the basic plane, and a third of one beyond it. That is more than vocabularies of a hundred thousand
    need, and less than small ones do for other scripts than the Latin one."""

    def count(self, text: str) -> int:
        return -(-int(_thirds(text).sum()) // 3)

    def truncate(self, text: str, tokens: int) -> str:
        return text[: int(np.searchsorted(_thirds(text).cumsum(), 3 * max(0, tokens), side="right"))]


def _thirds(text: str) -> NDArray[np.int64]:
    """What each character counts for, in thirds of a token."""
    signs = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    letters = (signs == ord(" ")) | ((signs | 32) - ord("a") < 26)
    return np.where(letters, 1, np.where(signs < 2**16, 3, 9))


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
        """Of a long text by its lines, most of which were often counted before."""
        lines = text.splitlines(keepends=True) if len(text) > REMEMBERED_CHARS else [text]
        return sum(len(self._ends(line)) for line in lines)

    def truncate(self, text: str, tokens: int) -> str:
        """The longest start of ``text`` of at most ``tokens`` tokens; text that fits comes back as it is."""
        ends = self._ends(text)
        if len(ends) <= tokens:
            return text
        while tokens > 0 and ends[tokens - 1] == ends[tokens]:
            tokens -= 1  # a character of several tokens, which do not all fit
        return text[: ends[tokens - 1]] if tokens > 0 else ""

    def _ends(self, text: str) -> "array[int]":
        return self._known(text) if len(text) <= REMEMBERED_CHARS else self._read(text)

    def _read(self, text: str) -> "array[int]":
        """The character where each token ends."""
        return array("L", [end for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets])
