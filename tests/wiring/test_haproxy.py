"""The start script and the variables that put HAProxy before the graph; `tests/wiring/test_doors.py` runs it."""

import subprocess
from pathlib import Path

import pytest

from deployments import haproxy

ECHO = {"RAY_SERVE_HAPROXY_BINARY_PATH": "/bin/echo"}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(haproxy, "LONGEST_FOLDER", 1000)
    return tmp_path_factory.mktemp("a folder") / "h"


def test_the_script_closes_both_ports_splices_nothing_and_tells_who_asks(folder: Path) -> None:
    """Over Serve's own template, with a program in the place of HAProxy that says how it was called."""
    from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

    script = haproxy.environ(folder, ECHO)["RAY_SERVE_HAPROXY_BINARY_PATH"]
    config = folder / "haproxy.cfg"
    template = HAPROXY_CONFIG_TEMPLATE.replace("{{ config.stats_port }}", "8404")
    config.write_text(template.replace("{{ config.metrics_port }}", "9101"))
    said = subprocess.run([script, "-db", "-f", config, "-sf", "12"], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["-dS", "-db", "-f", *str(config).split(), "-sf", "12"]
    binds = [line.split()[1] for line in config.read_text().splitlines() if line.strip().startswith("bind ")]
    assert not any(place.endswith((":8404", ":9101")) for place in binds)
    assert sum(place.startswith("unix@") for place in binds) == 2
    assert config.read_text().count("    http-request set-header X-Forwarded-For %[src]\n") == 1


def test_it_does_not_start_where_nobody_would_be_told_who_asks(folder: Path) -> None:
    script = haproxy.environ(folder, ECHO)["RAY_SERVE_HAPROXY_BINARY_PATH"]
    config = folder / "haproxy.cfg"
    config.write_text("frontend another_name\n    bind :80\n")
    assert subprocess.run([script, "-f", config], capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize(("serve", "script", "told"), [("0", "", True), ("1", "", False), ("1", "1", True)])
def test_as_serve_starts_it_everybody_would_be_this_machine(
    monkeypatch: pytest.MonkeyPatch, serve: str, script: str, told: bool
) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", serve)
    if script:
        monkeypatch.setenv("ASSAY_HAPROXY", script)
    assert haproxy.tells_clients() is told


def test_a_machine_without_it_starts_serves_own_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert haproxy.environ(tmp_path / "h", {}) == {}


def test_who_wants_serves_own_proxy_has_it(tmp_path: Path) -> None:
    assert haproxy.environ(tmp_path / "h", {"RAY_SERVE_ENABLE_HA_PROXY": "0"}) == {} and not list(tmp_path.iterdir())


def test_a_folder_whose_sockets_would_have_too_long_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="34"):
        haproxy.environ(tmp_path / ("h" * 40), {})


@pytest.mark.parametrize(
    ("words", "said"), [([], "folder"), (["/tmp/" + "h" * 40], "34"), (["/dev/null/h"], "Not a dir")]
)
def test_the_command_says_what_is_wrong(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["haproxy", *words])
    with pytest.raises(SystemExit, match="2"):
        haproxy.main()
    assert said in capsys.readouterr().err
