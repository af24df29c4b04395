"""Ask a running graph from Python, by its handle: once for the whole answer, once as a stream of events.

Start the graph first (``make serve``, which prints the RAY_ADDRESS to set), then:
``python examples/by_handle.py "How is the index published?"``
"""

import asyncio
import os
import sys

os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray checks a token by default; a driver must be told to send it

import ray
from ray import serve

from assay.events import AnswerEvent, CompletedEvent
from assay.schemas import AskRequest, AskResponse


async def ask(question: str) -> AskResponse:
    handle = serve.get_app_handle("assay")
    return await handle.ask.remote(AskRequest(question=question))  # type: ignore[no-any-return]


async def stream(question: str) -> AskResponse:
    """Prints the answer while it is written."""
    handle = serve.get_app_handle("assay").options(stream=True)
    async for event in handle.stream.remote(AskRequest(question=question)):
        if isinstance(event, AnswerEvent):
            print(event.delta, end="", flush=True)
        if isinstance(event, CompletedEvent):
            print()
            return event.response
    raise RuntimeError("the stream ended without its last event")


async def main(question: str) -> None:
    answer = await ask(question)
    print(answer.status, answer.timings_ms["total"], "ms")
    answer = await stream(question)
    for citation in answer.citations:
        print(f"[{citation.number}] {citation.uri} {' > '.join(citation.heading)} {citation.span}: {citation.quote!r}")


if __name__ == "__main__":
    ray.init(address="auto", namespace="serve", log_to_driver=False)
    asyncio.run(main(" ".join(sys.argv[1:]) or "How is the index published?"))
