"""One engine of a config by itself, for the commands that measure it: in a Ray of its own, or at its endpoint."""

from pathlib import Path
from typing import Any

from assay.config import AppConfig
from assay.errors import SetupError
from assay.llm.endpoint import EndpointConfig
from assay.llm.http import EndpointLLM, key_of
from assay.ports import LLM
from deployments.engine import build_engine, model_of


class AloneEngine:
    """Started by ``start``, stopped by ``close``. ``model``: its folder or id."""

    def __init__(self, config: AppConfig, name: str) -> None:
        if name not in config.engines:
            raise SetupError(f"the config has no engine '{name}'", "engine", tuple(config.engines))
        self._name, self._config = name, config.engines[name]
        self.model = model_of(self._config, Path(config.cache).expanduser())
        self._endpoint: EndpointLLM | None = None
        self._started = False

    async def start(self) -> LLM:
        if isinstance(self._config, EndpointConfig):
            key_of(self._config)
            self._endpoint = EndpointLLM(self._config)
            return self._endpoint
        import ray
        from ray import serve

        from deployments.remote import RemoteLLM

        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        self._started = True
        app: Any = build_engine(self._name, self._config, self.model)
        handle = serve.run(app, name=f"engine-{self._name}", route_prefix=None)
        return RemoteLLM(self._name, handle)

    async def close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()
        if self._started:
            import ray
            from ray import serve

            self._started = False
            serve.shutdown()
            ray.shutdown()
