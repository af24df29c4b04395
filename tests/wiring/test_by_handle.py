"""Questions by handle have places of their own: however many a batch asks at once, those at a screen have theirs."""

import asyncio
from typing import Any

import pytest

from assay.config import IngressConfig
from assay.errors import Overloaded
from assay.schemas import AskRequest
from deployments import ingress

pytestmark = pytest.mark.anyio


class Driver:
    def __init__(self) -> None:
        self.asked = 0
        self.go = asyncio.Event()

    async def ask(self, request: AskRequest, request_id: str) -> str:
        self.asked += 1
        await self.go.wait()
        if request.question == "bad":
            raise ValueError(request_id)
        return request_id


async def test_no_more_than_their_places_are_taken_and_each_is_given_back() -> None:
    served: Any = ingress.Ingress
    *_, kind = (c for c in served.func_or_class.__mro__ if c.__module__ == ingress.__name__)
    made = object.__new__(kind)  # without a replica
    made._config, made._driver, made._by_handle = IngressConfig(max_ongoing=3), Driver(), 0
    asking = [asyncio.create_task(made.ask(AskRequest(question=q))) for q in ("one", "bad", "two")]
    while made._driver.asked < 3:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="3 questions of handles") as told:
        await made.ask(AskRequest(question="one too many"))
    assert told.value.retryable, "a batch asks again"
    asking[2].cancel()
    made._driver.go.set()
    await asyncio.gather(*asking, return_exceptions=True)
    assert await made.ask(AskRequest(question="again"))
