"""One question's events, made whole for whoever shows them: each with the request's id, and exactly one end."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from assay.conversations.talk import Asks
from assay.errors import AssayError
from assay.events import CompletedEvent, ErrorEvent, Event
from assay.schemas import AskRequest
from deployments.problems import body_of, censored, internal


async def told(driver: Asks, request: AskRequest, request_id: str) -> AsyncGenerator[Event, None]:
    """The driver's events, each with the request's id, and exactly one end even if the driver raises or just stops."""
    try:
        async with aclosing(driver.stream(request, request_id)) as events:
            async for event in events:
                yield _stamped(event, request_id)
                if isinstance(event, CompletedEvent | ErrorEvent):
                    return
        raise AssayError("the driver's stream ended without completed or error")
    except AssayError as fault:
        yield ErrorEvent(request_id=request_id, error=body_of(fault, request_id))
    except Exception as fault:  # noqa: BLE001 - after the first byte there is no 500: the stream must end with an event
        yield ErrorEvent(request_id=request_id, error=internal(fault, request_id))


def _stamped(event: Event, request_id: str) -> Event:
    update: dict[str, object] = {"request_id": request_id}
    if isinstance(event, CompletedEvent):
        update["response"] = event.response.model_copy(update={"request_id": request_id})
    if isinstance(event, ErrorEvent):
        update["error"] = censored(event.error, request_id)
    return event.model_copy(update=update)
