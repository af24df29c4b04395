"""Log-probabilities of given continuations, with all items of a request in the engine at once."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.schemas import Usage
from assay.types import ItemScore, ScoreItem, ScoreRequest, Scores

_MOST_IDS = 128  # tokens whose log-probabilities vLLM gives of one position


@dataclass(frozen=True, slots=True)
class _Job:
    """A prompt whose last ``tail`` tokens are the continuation."""

    tokens: list[int]
    tail: int


class Scorer:
    """Log-probabilities of continuations. All items of a request are in the engine at once."""

    def __init__(self, client: Any, max_model_len: int) -> None:
        self._client, self._max_model_len = client, max_model_len
        self._tokenizer: Any = client.get_tokenizer()
        self._calls = 0

    async def one_token(self) -> None:
        await self._generate([self._tokenizer.eos_token_id or 0], self._params(), "health", None)

    async def score(self, request: ScoreRequest) -> Scores:
        jobs = await asyncio.to_thread(lambda: [self._job(item) for item in request.items])
        alike: dict[tuple[int, ...], list[int]] = {}
        for at, job in enumerate(jobs):
            # Answers that differ in their last token alone (yes and no, grades of which each is a space and a digit) are read
            # from one distribution.
            key = (-2, at) if isinstance(job, str) else (*job.tokens[:-1], -1, job.tail)
            alike.setdefault(key, []).append(at)
        groups = list(alike.values())
        parts = [group[i : i + _MOST_IDS] for group in groups for i in range(0, len(group), _MOST_IDS)]
        results = await asyncio.gather(*(self._scored([jobs[at] for at in part], request) for part in parts))
        scores: list[ItemScore | None] = [None] * len(jobs)
        for part, (found, _) in zip(parts, results, strict=True):
            for at, score in zip(part, found, strict=True):
                scores[at] = score
        usage = sum((usage for _, usage in results), Usage())
        return Scores(tuple(score for score in scores if score is not None), usage)

    def _job(self, item: ScoreItem) -> _Job | str:
        """Tokens, or the item's fault.

        Both strings are tokenised together, as the model would have met them, and split where they part from the context's
        own tokens. Spaces at the context's end move over: in most vocabularies a space belongs to the word that follows.
        """
        context = item.context.rstrip(" ")
        continuation = item.context[len(context) :] + item.continuation
        if not item.continuation.strip():
            return "empty continuation"
        before = self._tokenizer.encode(context)
        tokens = self._tokenizer.encode(context + continuation)
        shared = next((i for i, (a, b) in enumerate(zip(before, tokens, strict=False)) if a != b), len(before))
        if shared == 0:
            return "empty context"
        if len(tokens) >= self._max_model_len:
            return f"{len(tokens)} tokens do not fit the model's {self._max_model_len}"
        return _Job(tokens, len(tokens) - shared)

    async def _scored(self, jobs: Sequence[_Job | str], request: ScoreRequest) -> tuple[list[ItemScore], Usage]:
        """One job, or several that differ in their last token."""
        job = jobs[0]
        if isinstance(job, str):
            return [ItemScore(math.nan, 0, job)], Usage()
        from vllm.exceptions import VLLMClientError

        try:
            if len(jobs) == 1 and job.tail > 1:
                whole, _, usage = await self._prompted(job.tokens, job.tail, request)
                found = [whole]
            else:
                last = [j.tokens[-1] for j in jobs if isinstance(j, _Job)]
                inner, after, usage = await self._prompted(job.tokens[:-1], job.tail - 1, request, last)
                found = [[*inner, after[token].logprob] if token in after else [] for token in last]
        except VLLMClientError as error:  # this item's own fault; the engine's would be a VLLMServerError
            return [ItemScore(math.nan, 0, str(error)) for _ in jobs], Usage()
        return [_score(logprobs, job.tail) for logprobs in found], usage

    async def _prompted(
        self, prompt: Sequence[int], tail: int, request: ScoreRequest, following: Sequence[int] = ()
    ) -> tuple[list[float], Any, Usage]:
        """Of the prompt's last ``tail`` tokens, and by token those of ``following``, any of which may come after it.

        vLLM gives no log-probabilities for tokens that it took from the prefix cache, so it does not read the cache where it is
        asked for them. Here it may, as long as the cache ends before the tail: usually it does, else ask again."""
        asked: dict[str, Any] = {"logprob_token_ids": list(dict.fromkeys(following))} if following else {}
        if tail:
            asked["prompt_logprobs"] = 0
        params = self._params(**asked)
        params.skip_reading_prefix_cache = False
        output = await self._generate(prompt, params, request.request_id, request.cache_salt)
        usage = _prompt_usage(output)
        if tail and output.num_cached_tokens >= len(prompt) - tail:
            output = await self._generate(prompt, self._params(**asked), request.request_id, request.cache_salt)
            usage += _prompt_usage(output)
        positions = zip(prompt[-tail:], output.prompt_logprobs[-tail:], strict=True) if tail else ()
        inner = [position[token].logprob for token, position in positions if position and token in position]
        return inner, output.outputs[0].logprobs[0] if following else {}, usage

    @staticmethod
    def _params(**kwargs: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=1, temperature=0.0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, **kwargs
        )

    async def _generate(self, tokens: Sequence[int], params: Any, request_id: str, salt: str | None) -> Any:
        self._calls += 1
        prompt: dict[str, Any] = {"prompt_token_ids": list(tokens)}
        if salt:
            prompt["cache_salt"] = salt
        (output,) = [o async for o in self._client.generate(prompt, params, f"{request_id}-score-{self._calls}")]
        return output


def _score(logprobs: Sequence[float], tokens: int) -> ItemScore:
    if len(logprobs) != tokens or not all(map(math.isfinite, logprobs)):
        return ItemScore(math.nan, 0, "the engine returned no score")
    return ItemScore(sum(logprobs), tokens, each=tuple(logprobs))


def _prompt_usage(output: Any) -> Usage:
    return Usage(
        llm_calls=1,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        completion_tokens=len(output.outputs[0].token_ids),
    )
