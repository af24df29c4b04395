"""vLLM's own OpenAI API of an engine, on loopback of its replica's machine: for other tools there, and to test ours against."""

import asyncio
from typing import Any


async def open_door(engine: Any, port: int) -> "asyncio.Task[None]":
    """Serves until the task is cancelled. ``engine``: the ``VLLMEngine`` of ``ray.serve.llm``."""
    import uvicorn

    app = await engine.build_asgi_app()
    # Without a log_config: uvicorn's would close the handlers of Serve's log.
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False, lifespan="off")
    return asyncio.create_task(uvicorn.Server(config).serve())
