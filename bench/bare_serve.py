"""What a question's calls cost Ray Serve alone: those of the fake models' graph, about as much text and the same waits, and
replicas that do nothing. What Assay adds is the rest.
"""

import asyncio
import os
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from assay.config import AppConfig
from bench.fake_models import DELAY

_FOUND = tuple("A passage of some five hundred characters. " * 12 for _ in range(30))
_RERANKED = 8
_OPTIONS: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0.1}, "max_ongoing_requests": 1000}


@serve.deployment(name="Engine", **_OPTIONS)
class Engine:
    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    async def ask(self, texts: tuple[str, ...]) -> tuple[float, ...]:
        await asyncio.sleep(self._delay_s)
        return (0.0,) * len(texts)


@serve.deployment(name="Retriever", **_OPTIONS)
class Retriever:
    async def search(self, question: str) -> tuple[str, ...]:
        return _FOUND

    async def embed(self, texts: tuple[str, ...]) -> tuple[float, ...]:
        return (0.0,) * len(texts)


@serve.deployment(name="Driver", **_OPTIONS)
class Driver:
    def __init__(self, engine: DeploymentHandle, retriever: DeploymentHandle) -> None:
        self._engine, self._retriever = engine, retriever

    async def ask(self, question: str) -> str:
        """The first hop beside the plan, a search, the reranking, and an extract: vectors, then the model."""
        first = self._retriever.search.remote(question)
        await self._engine.ask.remote((question,))
        await first
        passages = (await self._retriever.search.remote(question))[:_RERANKED]
        await self._engine.ask.remote(passages)
        await self._retriever.embed.remote(passages)
        await self._engine.ask.remote(passages)
        return str(passages[0])


app = FastAPI()


@serve.deployment(name="Ingress", **_OPTIONS)
@serve.ingress(app)
class Ingress:
    def __init__(self, driver: DeploymentHandle) -> None:
        self._driver = driver

    @app.post("/v1/answers")
    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"answer": await self._driver.ask.remote(body["question"])}

    @app.get("/healthz")
    async def healthz(self) -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz(self) -> dict[str, Any]:
        return {"stages": {"all": "ready"}, "reasons": []}


def build_app(args: AppConfig) -> Application:
    engine = Engine.bind(float(os.environ[DELAY]))  # type: ignore[attr-defined]
    return Ingress.bind(Driver.bind(engine, Retriever.bind()))  # type: ignore[attr-defined]
