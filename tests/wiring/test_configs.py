"""Every YAML of the project is what Serve, Ray and our own config take, and a mistake in one would be noticed."""

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
import ray
import yaml
from pydantic import BaseModel, ValidationError
from ray._private.authentication.authentication_token_setup import _get_default_token_path
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import GangResourceRequest, ResourceRequest, ResourceRequestByCount
from ray.core.generated.common_pb2 import LabelSelectorOperator
from ray.serve import Application
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import (
    DeploymentSchema,
    HTTPOptionsSchema,
    RayActorOptionsSchema,
    ServeApplicationSchema,
    ServeDeploySchema,
)

import graph
from assay import serve_config
from assay.config import AppConfig, EngineConfig, IngressConfig
from assay.conversations.database import CONNECTIONS
from assay.errors import SetupError
from assay.keys import KeyFile
from deployments.engine import build_engine

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
CLUSTER = ROOT / "ray-cluster.yaml"
STAGES = {"Ingress", "Driver", "Expander", "Retriever", "Reranker", "Generator", "Ingester"}
PLACED = {"Expander", "Reranker", "Generator"}  # in a deployment, or in the driver's
STREAMS = "Streams"  # where the streams of several replicas are found, in one
ALONE = {STREAMS, "Ingester"}  # of which there is one: an index has one writer
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def lint(raw: Any) -> list[str]:
    """What is wrong with a Serve config. Serve's own schema ignores the keys that it doesn't know."""
    try:
        ServeDeploySchema.model_validate(raw)
    except ValidationError as e:
        return [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in e.errors()]
    found = [*unknown("", raw, ServeDeploySchema), *unknown("http_options", raw.get("http_options"), HTTPOptionsSchema)]
    for app in raw["applications"]:
        found += unknown("application", app, ServeApplicationSchema)
        found += args_faults(app.get("args") or {})
        names = [item["name"] for item in app.get("deployments", [])]
        found += [f"deployments: {name} twice" for name in sorted({name for name in names if names.count(name) > 1})]
        found += [f"deployments: there is no {name}" for name in names if name not in {*STAGES, STREAMS}]
        for item in app.get("deployments", []):
            found += unknown(item["name"], item, DeploymentSchema)
            found += unknown(item["name"], item.get("ray_actor_options"), RayActorOptionsSchema)
            found += unknown(item["name"], item.get("autoscaling_config"), AutoscalingConfig)
    return found


def unknown(where: str, values: dict[str, Any] | None, schema: type[BaseModel]) -> list[str]:
    known = {name for key, info in schema.model_fields.items() for name in (key, info.alias) if name}
    return [f"{where}: unknown key '{key}'" for key in values or {} if key not in known]


def vllm_engines(app: AppConfig) -> dict[str, EngineConfig]:
    return {name: engine for name, engine in app.engines.items() if isinstance(engine, EngineConfig)}


def args_faults(args: dict[str, Any]) -> list[str]:
    try:
        AppConfig.model_validate(args)
    except ValidationError as e:
        return [f"args.{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in e.errors()]
    return []


def cluster_faults(raw: Any) -> list[str]:
    """Ray's JSON schema knows the shape; that names and bounds fit together it leaves to the autoscaler's start."""
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    found = [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(raw)]
    if found:
        return found
    types = raw.get("available_node_types", {})
    if raw.get("head_node_type") not in types:
        found.append(f"head_node_type '{raw.get('head_node_type')}' is not among {sorted(types)}")
    for name, node in types.items():
        if node.get("min_workers", 0) > node.get("max_workers", 0):
            found.append(f"{name}: min_workers above max_workers")
    if sum(node.get("min_workers", 0) for node in types.values()) > raw.get("max_workers", 2):
        found.append("max_workers is below the sum of min_workers")
    return found


@pytest.fixture(params=CONFIGS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return cast("Path", request.param)


# ---- configs/ -------------------------------------------------------------------------------------------------------


def test_all_three_are_there() -> None:
    assert [path.stem for path in CONFIGS] == ["cluster", "gpu", "local"]


def test_config_is_valid(path: Path) -> None:
    assert lint(load(path)) == []


def test_config_names_the_graph_and_every_stage(path: Path) -> None:
    (app,) = load(path)["applications"]
    assert (app["name"], app["import_path"]) == ("assay", "graph:build_app")
    args = AppConfig.model_validate(app["args"])
    inside = {name for name in PLACED if getattr(args, name.lower()).placement == "driver"}
    expected = STAGES - inside | ({STREAMS} if args.ingress.streams.shared else set())
    assert {item["name"] for item in app["deployments"]} == expected
    assert inside == (PLACED if path.stem == "local" else set())  # what scales has replicas of its own


def test_config_reaches_no_network_by_itself(path: Path) -> None:
    (app,) = load(path)["applications"]
    assert OFFLINE.items() <= app["runtime_env"]["env_vars"].items()


def test_on_one_machine_calls_go_over_grpc_and_serve_takes_its_word(path: Path) -> None:
    """Across machines Ray tells sooner that one is gone (docs/adr/0021)."""
    env = load(path)["applications"][0]["runtime_env"]["env_vars"]
    script = (
        "from ray.serve._private import constants as c\n"
        "print(c.RAY_SERVE_USE_GRPC_BY_DEFAULT, c.RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH)"
    )
    run = subprocess.run([sys.executable, "-c", script], env={**os.environ, **env}, capture_output=True, check=True)
    assert run.stdout.decode().split() == (["False", str(2**22)] if path.stem == "cluster" else ["True", str(2**28)])


def test_whoever_listens_beyond_this_machine_requires_keys(path: Path) -> None:
    config = serve_config.load(path)
    assert config.host == "127.0.0.1" or config.app.ingress.keys_required


def test_no_key_stands_twice(path: Path) -> None:
    """YAML takes the last one in silence."""

    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        names = [loader.construct_object(name) for name, _ in node.value]
        assert len(names) == len(set(names)), names
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    yaml.load(path.read_text(), Strict)


def test_queues_are_bounded_and_not_starved(path: Path) -> None:
    """Serve's defaults are 5 requests at a time, and queues without end."""
    (app,) = load(path)["applications"]
    for item in app["deployments"]:
        assert item["max_ongoing_requests"] >= 32, item["name"]
        assert item["max_queued_requests"] > 0, item["name"]


def test_a_batch_leaves_the_driver_places_for_others(path: Path) -> None:
    """Handles and HTTP have ``ingress.max_ongoing`` places each in each ingress replica: the drivers have room for all of them,
    so that a batch that has taken all of its own takes nobody else's."""
    (app,) = load(path)["applications"]
    items = {item["name"]: item for item in app["deployments"]}
    config = AppConfig.model_validate(app["args"]).ingress
    for bound in ("min_replicas", "max_replicas"):
        ingresses, drivers = (items[name].get("autoscaling_config", {}).get(bound, 1) for name in ("Ingress", "Driver"))
        assert drivers * items["Driver"]["max_ongoing_requests"] >= 2 * config.max_ongoing * ingresses, bound


def test_health_checks_do_not_queue_behind_what_lasts(path: Path) -> None:
    """The ingress refuses what is too much itself, of every kind; its replica still has room for other requests."""
    (app,) = load(path)["applications"]
    (ingress,) = [item for item in app["deployments"] if item["name"] == "Ingress"]
    config = AppConfig.model_validate(app["args"]).ingress
    assert ingress["max_ongoing_requests"] >= config.max_requests + 16
    assert config.max_requests > 4 * config.max_ongoing, "questions, searches, streams taken up (twice), and jobs"


def test_the_ingress_without_a_config_has_room_too() -> None:
    config = deployment(graph.Ingress.bind(IngressConfig(), None))._deployment_config  # type: ignore[attr-defined]
    assert config.max_ongoing_requests >= IngressConfig().max_requests + 16


def test_http_times_out_after_the_driver(path: Path) -> None:
    """The driver must be the one that ends a question, with the best answer so far."""
    config = serve_config.load(path)
    assert config.raw["http_options"]["request_timeout_s"] > config.app.loop.deadline_s


def test_an_upload_may_take_as_long_as_its_config_says(path: Path) -> None:
    """Serve's timeout is of the whole request, its body too: a shorter one would end an upload without our error."""
    config = serve_config.load(path)
    uploads = config.app.ingress.documents
    assert config.raw["http_options"]["request_timeout_s"] >= uploads.upload_s + 30  # to be stored, and answered


def test_small_configs_listen_on_loopback_only() -> None:
    for name in ("local", "gpu"):
        assert serve_config.load(ROOT / "configs" / f"{name}.yaml").host == "127.0.0.1"


def test_local_fits_two_cores_beside_its_engine() -> None:
    (app,) = load(ROOT / "configs" / "local.yaml")["applications"]
    assert sum(item["ray_actor_options"]["num_cpus"] for item in app["deployments"]) <= 1
    assert list(AppConfig.model_validate(app["args"]).engines) == ["small"]


@pytest.mark.parametrize("name", ["gpu", "cluster"])
def test_each_llm_stage_has_its_own_engine(name: str) -> None:
    app = serve_config.load(ROOT / "configs" / f"{name}.yaml").app
    assert len({app.expander.engine, app.reranker.engine, app.generator.engine}) == len(app.engines) == 3
    assert all(engine.device == "gpu" for engine in vllm_engines(app).values())


def test_one_gpu_is_shared_and_not_overdrawn() -> None:
    raw = load(ROOT / "configs" / "gpu.yaml")["applications"][0]
    engines = vllm_engines(AppConfig.model_validate(raw["args"])).values()
    others = sum(item["ray_actor_options"].get("num_gpus", 0) for item in raw["deployments"])
    assert sum(engine.gpu_memory_utilization for engine in engines) + others <= 1
    assert all("kv_cache_memory_bytes" in engine.engine_kwargs for engine in engines)


@pytest.mark.parametrize(
    ("where", "users"),
    [(("index", "embed_device"), ["Retriever", "Ingester"]), (("retriever", "device"), ["Retriever"])],
    ids=["embedder", "vectors"],
)
def test_who_is_to_use_a_gpu_asks_for_one(where: tuple[str, str], users: list[str], tmp_path: Path) -> None:
    raw = load(ROOT / "configs" / "local.yaml")
    app = raw["applications"][0]
    app["args"].setdefault(where[0], {})[where[1]] = "cuda"
    path = tmp_path / "serve.yaml"
    for user in users:
        path.write_text(yaml.safe_dump(raw))
        with pytest.raises(
            SetupError, match=rf"args\.{where[0]}\.{where[1]} is cuda, but the deployment {user} has no num_gpus"
        ):
            serve_config.load(path)
        next(item for item in app["deployments"] if item["name"] == user)["ray_actor_options"]["num_gpus"] = 0.1
    path.write_text(yaml.safe_dump(raw))
    serve_config.load(path)


@pytest.mark.parametrize("stage", sorted(PLACED))
def test_a_stage_inside_the_driver_has_no_deployment(stage: str, tmp_path: Path) -> None:
    raw = load(ROOT / "configs" / "local.yaml")
    app, path = raw["applications"][0], tmp_path / "serve.yaml"
    app["deployments"].append({"name": stage})
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(SetupError, match=rf"args\.{stage.lower()}\.placement is driver"):
        serve_config.load(path)
    app["args"][stage.lower()]["placement"] = "deployment"
    path.write_text(yaml.safe_dump(raw))
    serve_config.load(path)


def test_the_retriever_has_no_placement() -> None:
    """It is always a deployment; a setting that did nothing would be taken for one that does."""
    with pytest.raises(ValidationError, match=r"retriever\.placement"):
        AppConfig.model_validate({"retriever": {"placement": "driver"}})


def test_cluster_scales_every_stage_and_engine() -> None:
    raw = load(ROOT / "configs" / "cluster.yaml")["applications"][0]
    scaled = {i["name"]: i["autoscaling_config"]["max_replicas"] for i in raw["deployments"] if i["name"] not in ALONE}
    assert set(scaled) == STAGES - ALONE and min(scaled.values()) > 1
    assert all(engine.max_replicas > 1 for engine in AppConfig.model_validate(raw["args"]).engines.values())


def test_the_cluster_leaves_its_database_connections() -> None:
    """PostgreSQL's own limit is 100, three of them for its superuser; a few more are of replicas that are replaced."""
    app = load(ROOT / "configs" / "cluster.yaml")["applications"][0]
    most = {i["name"]: i["autoscaling_config"]["max_replicas"] for i in app["deployments"] if i["name"] not in ALONE}
    assert CONNECTIONS * (most["Ingress"] + most["Driver"]) <= 0.8 * 97


def test_no_path_of_the_cluster_is_of_one_node() -> None:
    """What a replica writes there, one on another node must find."""
    args = AppConfig.model_validate(load(ROOT / "configs" / "cluster.yaml")["applications"][0]["args"])
    ingress = args.ingress
    paths = [args.index.uri, ingress.keys, ingress.audit.folder, ingress.documents.path]
    assert [path for path in paths if not str(path).startswith("/mnt/assay/")] == []
    assert args.answers.store == ingress.conversations.store == "postgresql"  # no SQLite file on a network's disk


# ---- what is built from them ----------------------------------------------------------------------------------------


def deployment(app: Application) -> Any:
    return app._bound_deployment


def engines_of(path: Path) -> list[tuple[EngineConfig, Any]]:
    engines = vllm_engines(serve_config.load(path).app).items()
    return [(config, deployment(build_engine(name, config, config.model))) for name, config in engines]


def test_the_defaults_build() -> None:
    """``serve run graph:build_app``, without a config. Needs the prepared model, as every graph does."""
    assert deployment(graph.build_app(AppConfig())).name == "Ingress"


def test_the_config_builds(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = serve_config.load(path).app
    keys = tmp_path / "keys.json"
    app = app.model_copy(update={"ingress": app.ingress.model_copy(update={"keys": str(keys)})})
    if app.ingress.keys_required:
        with pytest.raises(SetupError, match="keys create"):
            graph.build_app(app)
        KeyFile(keys).create("a", None, ["ask"], 60, 2)
    monkeypatch.setenv("ASSAY_DATABASE_URL", "postgresql://assay@db.example/assay")
    assert deployment(graph.build_app(app)).name == "Ingress"


@pytest.mark.parametrize("section", ["answers", "ingress.conversations"])
def test_a_database_without_its_url_is_said_before_a_replica_starts(
    section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: dict[str, Any] = {"store": "postgresql"}
    args = {"answers": shared} if section == "answers" else {"ingress": {"conversations": shared}}
    monkeypatch.delenv("ASSAY_DATABASE_URL", raising=False)
    with pytest.raises(SetupError, match=rf"{section}\.store .* no ASSAY_DATABASE_URL"):
        graph.build_app(AppConfig.model_validate(args))
    monkeypatch.setenv("ASSAY_DATABASE_URL", "nonsense")
    with pytest.raises(SetupError, match=rf"{section}\.store .* ASSAY_DATABASE_URL.*must be like postgresql://"):
        graph.build_app(AppConfig.model_validate(args))


def test_engine_queues_are_bounded(path: Path) -> None:
    for config, engine in engines_of(path):
        assert engine._deployment_config.max_ongoing_requests == config.max_ongoing_requests >= config.max_num_seqs
        assert 0 < engine._deployment_config.max_queued_requests <= 2 * config.max_ongoing_requests


def test_an_engines_workers_fit_their_bundles(path: Path) -> None:
    """What vLLM's workers ask for, by the environment of the replica, is what the bundles hold; all in one node."""
    for config, engine in engines_of(path):
        options = engine._replica_config
        bundles = options.placement_group_bundles
        assert len(bundles) == config.tensor_parallel
        assert options.placement_group_strategy == "STRICT_PACK"
        assert options.ray_actor_options["num_cpus"] <= bundles[0]["CPU"]
        env = options.ray_actor_options.get("runtime_env", {}).get("env_vars", {})
        share = float(env.get("VLLM_RAY_PER_WORKER_GPUS", 0))
        assert [bundle.get("GPU", 0) for bundle in bundles] == [share] * config.tensor_parallel
        assert (share > 0) == (config.device == "gpu")


# ---- the checks can fail --------------------------------------------------------------------------------------------


def mistakes() -> Iterator[tuple[str, list[str], Any, str]]:
    """Where in local.yaml (a path of keys), what is put there, and a word that the complaint must have."""
    app, first = ["applications", "0"], ["applications", "0", "deployments", "0"]
    yield "typo in a deployment", [*first, "num_replica"], 3, "num_replica"
    yield "typo in actor options", [*first, "ray_actor_options", "num_cpu"], 1, "num_cpu"
    yield "typo in autoscaling", [*first, "autoscaling_config"], {"max_replica": 3}, "max_replica"
    yield "wrong type", [*first, "max_ongoing_requests"], "many", "max_ongoing_requests"
    yield "no such stage", [*first, "name"], "Ingres", "there is no Ingres"
    yield "stage twice", [*first, "name"], "Driver", "Driver twice"
    yield "typo in the application", [*app, "routeprefix"], "/", "routeprefix"
    yield "typo in http_options", ["http_options", "prot"], 1, "prot"
    yield "typo at the top", ["proxylocation"], "HeadOnly", "proxylocation"
    yield "typo in args", [*app, "args", "retriver"], {}, "retriver"
    yield "deep typo in args", [*app, "args", "loop", "deadline"], 5, "loop.deadline"
    yield "out of bounds", [*app, "args", "loop", "rounds"], 0, "rounds"
    yield "engine that is not there", [*app, "args", "reranker", "engine"], "big", "big"


@pytest.mark.parametrize(("where", "value", "word"), [m[1:] for m in mistakes()], ids=[m[0] for m in mistakes()])
def test_a_mistake_is_noticed(where: list[str], value: Any, word: str) -> None:
    raw = load(ROOT / "configs" / "local.yaml")
    spot = raw
    for key in where[:-1]:
        spot = spot[int(key)] if isinstance(spot, list) else spot.setdefault(key, {})
    spot[where[-1]] = value
    assert word in "; ".join(lint(raw))


def test_serve_itself_would_not_notice() -> None:
    """The reason for ``lint``. When this fails, Serve has learnt to refuse unknown keys, and ``unknown`` can go."""
    raw = load(ROOT / "configs" / "local.yaml")
    raw["applications"][0]["deployments"][0]["num_replica"] = 3
    ServeDeploySchema.model_validate(raw)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("applications: [", "not YAML"),
        ("[]", "no application named 'assay'"),
        ("applications: [{name: other}]", "no application named 'assay'"),
        ("applications: [{name: assay, args: {loop: {rounds: 0}}}]", "args.loop.rounds"),
    ],
)
def test_loader_says_what_is_wrong_in_one_line(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(SetupError) as caught:
        serve_config.load(path)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loader_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"missing\.yaml"):
        serve_config.load(tmp_path / "missing.yaml")


# ---- ray-cluster.yaml -----------------------------------------------------------------------------------------------


def test_cluster_yaml_is_valid() -> None:
    assert cluster_faults(load(CLUSTER)) == []


def test_cluster_has_a_cpu_head_and_bounded_gpu_workers() -> None:
    raw = load(CLUSTER)
    types = raw["available_node_types"]
    assert "GPU" not in types[raw["head_node_type"]]["resources"]
    workers = [node for node in types.values() if node["resources"].get("GPU")]
    assert workers
    assert all(0 < node["min_workers"] < node["max_workers"] for node in workers)
    assert any("requirements/gpu.txt" in command for command in raw["setup_commands"])
    assert any("--metrics-export-port" in command for command in raw["head_start_ray_commands"])


def launched(cluster: Any, graph: Any) -> tuple[dict[str, int], list[Any]]:
    """What Ray's autoscaler starts for the smallest graph of a config: workers of each kind, and what it cannot place."""
    kinds = {
        name: NodeTypeConfig(
            name, node.get("min_workers", 0), node.get("max_workers", 0), resources=resources(node), labels=labels(node)
        )
        for name, node in cluster["available_node_types"].items()
        if name != cluster["head_node_type"]
    }
    app = graph["applications"][0]
    engines = [
        asked(name, number, options)
        for name, config in vllm_engines(AppConfig.model_validate(app["args"])).items()
        for options in [deployment(build_engine(name, config, config.model))._replica_config]
        for number in range(config.min_replicas)
    ]
    stages = [
        ResourceRequestByCount(
            request=request({"CPU": options["num_cpus"]}, options.get("label_selector", {})),
            count=item.get("autoscaling_config", {}).get("min_replicas", 1),
        )
        for item in app["deployments"]
        for options in [item["ray_actor_options"]]
    ]
    reply = ResourceDemandScheduler().schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=kinds,
            max_num_nodes=cluster["max_workers"],
            gang_resource_requests=engines,
            resource_requests=stages,
        )
    )
    homeless = [*reply.infeasible_gang_resource_requests, *reply.infeasible_resource_requests]
    return {start.instance_type: start.count for start in reply.to_launch}, homeless


def resources(node: Any) -> dict[str, float]:
    """As the provider completes them for a node with L4s."""
    return {**node["resources"], **({"accelerator_type:L4": 1} if "GPU" in node["resources"] else {})}


def labels(node: Any) -> dict[str, str]:
    return dict(node.get("labels", {}))


def asked(name: str, number: int, options: Any) -> GangResourceRequest:
    """A replica's placement group, as a STRICT_PACK one is told to the autoscaler."""
    together = [(ResourceRequestUtil.PlacementConstraintType.AFFINITY, "group", f"{name}-{number}")]
    selectors = options.placement_group_bundle_label_selector or [{}] * len(options.placement_group_bundles)
    bundles = [
        request(bundle, labels, together)
        for bundle, labels in zip(options.placement_group_bundles, selectors, strict=True)
    ]
    return GangResourceRequest(requests=bundles)


def request(bundle: dict[str, float], labels: dict[str, str], constraints: Any = None) -> ResourceRequest:
    selector = [(name, LabelSelectorOperator.LABEL_OPERATOR_IN, [value]) for name, value in labels.items()]
    made = ResourceRequestUtil.make(bundle, constraints, [selector] if selector else None)
    return cast("ResourceRequest", made)


def test_the_smallest_graph_is_what_the_cluster_starts_with() -> None:
    """Ray's autoscaler places all of it, and starts no worker for it beyond the minimum of each kind."""
    cluster = load(CLUSTER)
    least = {name: n["min_workers"] for name, n in cluster["available_node_types"].items() if n.get("min_workers")}
    assert launched(cluster, load(ROOT / "configs" / "cluster.yaml")) == (least, [])
    cluster["available_node_types"]["cpu"]["min_workers"] = 1
    assert launched(cluster, load(ROOT / "configs" / "cluster.yaml")) == (least, []), "it takes all of the minimum"
    cluster["available_node_types"]["cpu"]["max_workers"] = 1
    assert launched(cluster, load(ROOT / "configs" / "cluster.yaml"))[1], "no GPU worker takes a stage instead"


def test_everything_on_the_cluster_says_what_kind_of_node_it_runs_on() -> None:
    """Else a small engine takes a GPU of the node that tensor parallelism needs whole, and a stage keeps GPUs from going."""
    kinds = {
        name: node["labels"]["assay/node"]
        for name, node in load(CLUSTER)["available_node_types"].items()
        if "labels" in node
    }
    assert all(name == label for name, label in kinds.items())
    path = ROOT / "configs" / "cluster.yaml"
    for item in load(path)["applications"][0]["deployments"]:
        assert item["ray_actor_options"]["label_selector"] == {"assay/node": "cpu"}, item["name"]
    for config, engine in engines_of(path):
        kind = "gpu-4xl4" if config.tensor_parallel == 4 else "gpu-l4"
        assert (
            engine._replica_config.placement_group_bundle_label_selector
            == [{"assay/node": kind}] * config.tensor_parallel
        )
        assert kind in kinds


@pytest.mark.parametrize("name", ["gpu", "local"])
def test_on_one_machine_no_label_is_asked_for(name: str) -> None:
    for _, engine in engines_of(ROOT / "configs" / f"{name}.yaml"):
        assert engine._replica_config.placement_group_bundle_label_selector is None


def test_cluster_fetches_every_model_on_every_worker() -> None:
    """Stages on CPU nodes read their model's tokenizer; nothing is looked up at run time."""
    command = " ".join(load(CLUSTER)["worker_setup_commands"])
    engines = serve_config.load(ROOT / "configs" / "cluster.yaml").app.engines.values()
    assert all(engine.model in command for engine in engines)
    assert cluster_downloads(command, gpu=True) == {engine.model: "" for engine in engines}
    assert cluster_downloads(command, gpu=False) == {engine.model: "tokenizer.json" for engine in engines}


def cluster_downloads(command: str, *, gpu: bool) -> dict[str, str]:
    """What the node's shell would fetch: model -> file, or all files."""
    stub = 'hf() { echo "$2 ${3:-}"; }; '
    stub += "nvidia-smi() { :; }; " if gpu else "command() { return 1; }; "
    done = subprocess.run(["bash", "-c", stub + command], capture_output=True, text=True, check=True)
    return {model: file for model, _, file in (line.partition(" ") for line in done.stdout.splitlines())}


def test_every_node_of_the_cluster_has_one_token_and_asks_for_it() -> None:
    """In the containers: of the nodes' Rays, and of what ``ray exec`` runs there."""
    raw = load(CLUSTER)
    assert "--env=RAY_AUTH_MODE=token" in raw["docker"]["run_options"]
    (token,) = [local for remote, local in raw["file_mounts"].items() if remote == "~/.ray/auth_token"]
    assert Path(token).expanduser() == _get_default_token_path()
    assert "ray get-auth-token --generate" in (ROOT / "README.md").read_text()
    starts = [*raw["head_start_ray_commands"], *raw["worker_start_ray_commands"]]
    assert not any("RAY_AUTH" in command for command in starts), "what ray exec runs would not have it"


def test_the_databases_url_reaches_the_containers() -> None:
    """By a file that is there before a container starts, on what every node mounts."""
    options = load(CLUSTER)["docker"]["run_options"]
    (file,) = [option.removeprefix("--env-file=") for option in options if option.startswith("--env-file=")]
    mounted = [
        option.removeprefix("--volume=").partition(":")[0] for option in options if option.startswith("--volume=")
    ]
    assert any(Path(file).is_relative_to(folder) for folder in mounted)
    app = serve_config.load(ROOT / "configs" / "cluster.yaml").app
    for name in {app.answers.dsn_env, app.ingress.conversations.dsn_env}:
        assert all(f"{name}=postgresql://" in path.read_text() for path in (CLUSTER, ROOT / "README.md"))
        assert file in (ROOT / "README.md").read_text()


def test_the_commands_in_the_readme_are_those_of_the_cluster() -> None:
    commands = re.findall(r"^#   (ray .*?)(?:   .*)?$", CLUSTER.read_text(), re.M)
    assert len(commands) == 5
    readme = (ROOT / "README.md").read_text()
    assert [command for command in commands if command not in readme] == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"cluster_nam": "x"}, "cluster_nam"),
        ({"max_workers": "ten"}, "ten"),
        ({"head_node_type": "chief"}, "chief"),
        ({"max_workers": 1}, "sum of min_workers"),
        ({"provider": {"region": "x"}}, "type"),
    ],
)
def test_a_mistake_in_the_cluster_is_noticed(change: dict[str, Any], word: str) -> None:
    raw = copy.deepcopy(load(CLUSTER)) | change
    assert word in "; ".join(cluster_faults(raw))
