"""The child process that parses: ``python -m assay.index.parse.child MEMORY_BYTES``. Requests on stdin, replies on stdout.

A request is a line of JSON (``format``, ``stem``, ``bytes``, ``passwords``) and then that many bytes; a reply is a line
with the number of bytes that follow, and then those: JSON with ``parsed``, or with ``reason`` and ``message``.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

from assay.errors import ParseFault
from assay.index.parse import parse
from assay.index.parse.parsed import dumps

_PR_SET_PDEATHSIG = 1
_NO_MEMORY = json.dumps({"reason": "memory", "message": "parsing needs more memory than allowed"}).encode()


def main() -> None:
    memory = int(sys.argv[1])
    if sys.platform == "linux":  # a parent that is killed cannot end a child that is busy
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a parser has nothing to write
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    requests = sys.stdin.buffer
    while line := requests.readline():
        head = json.loads(line)
        reply = _reply(requests.read(head["bytes"]), head)
        replies.write(b"%d\n" % len(reply))
        replies.write(reply)
        replies.flush()


def _reply(data: bytes, head: dict[str, Any]) -> bytes:
    try:
        return b'{"parsed": ' + dumps(parse(data, head["format"], head["stem"], head["passwords"])) + b"}"
    except ParseFault as e:
        return json.dumps({"reason": e.reason, "message": e.message}).encode()
    except MemoryError:
        return _NO_MEMORY  # made before: what the parser holds is not let go until this has returned
    except RecursionError:
        return json.dumps({"reason": "too_large", "message": "the file is nested too deeply"}).encode()
    except Exception as e:  # noqa: BLE001 - whatever a parser trips over is this file's fault, told by name
        return json.dumps({"reason": "malformed", "message": f"the parser failed: {type(e).__name__}"}).encode()


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        os.abort()  # as libraries in C end: the parent knows what it means
