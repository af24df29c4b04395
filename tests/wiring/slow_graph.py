"""A graph that stays in its start: no model, one replica whose constructor takes a minute."""

import asyncio

from ray import serve
from ray.serve import Application


class Slow:
    async def __init__(self) -> None:  # type: ignore[misc]  # Serve awaits it
        await asyncio.sleep(60)


def build_app(args: dict[str, object]) -> Application:
    return serve.deployment(Slow, ray_actor_options={"num_cpus": 0.1}).bind()
