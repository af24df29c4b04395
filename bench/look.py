"""Somebody who watches a server: asks every tenth of a second, on one connection, until a line comes on stdin or it is closed;
prints a line after the first look, and in the end the seconds of each, as JSON.

A process of its own, as a probe is: beside clients in one event loop it would count how long these keep that loop.
"""

import argparse
import http.client
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_EVERY_S = 0.1


@contextmanager
def looked_at(url: str) -> Iterator[list[float]]:
    """While what is inside runs; the list then has the seconds of each look."""
    found: list[float] = []
    command = [sys.executable, "-m", "bench.look", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as looking:
        assert looking.stdout
        looking.stdout.readline()  # it looks
        yield found
        said, _ = looking.communicate(timeout=60)
    found += json.loads(said)


def _url(text: str) -> str:
    if not text.startswith("http://") or not urlsplit(text).netloc:
        raise argparse.ArgumentTypeError(f"'{text}' is no http:// address")
    return text


def main(url: str) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    taken = []
    while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
        start = time.perf_counter()
        connection.request("GET", parts.path)
        reply = connection.getresponse()
        reply.read()
        taken.append(time.perf_counter() - start)
        if reply.status != 200:
            raise RuntimeError(f"{url} answered {reply.status}")
        if len(taken) == 1:
            print("looking", flush=True)
    print(json.dumps(taken))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.look", description=__doc__)
    parser.add_argument("url", type=_url, help="what is asked, such as http://127.0.0.1:8000/healthz")
    main(parser.parse_args().url)
