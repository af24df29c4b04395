"""Somebody who watches a server: ``python -m bench.look URL``. Asks every tenth of a second, on one connection, until stdin is
closed; prints a line after the first look, and in the end the seconds of each, as JSON.

A process of its own, as a probe is: beside clients in one event loop it would count how long these keep that loop.
"""

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit

_EVERY_S = 0.1


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
    main(sys.argv[1])
