"""What the page talks to in its tests: the real doors over the real loop and a real index; only the model is scripted.

An answer can be held at one of its events, and the line to the server can be cut.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

from assay.answers import SqliteAnswers
from assay.events import Event
from assay.index.uploads import Uploads
from assay.retrieve import LocalRetriever
from assay.schemas import AskRequest
from tests.wiring.local_driver import LocalDriver

PLAN = '{"variants": ["how the pump is serviced"]}'


class HeldDriver(LocalDriver):
    """Stops before the first event of the kind ``held`` until it is let go on."""

    def __init__(self, retriever: LocalRetriever, folder: Path) -> None:
        super().__init__(retriever, PLAN, SqliteAnswers(folder / "answers.db", 1000, 1))
        self.held = ""
        self.go = threading.Event()

    @contextmanager
    def holding(self, kind: str) -> Iterator[threading.Event]:
        self.held = kind
        self.go.clear()
        try:
            yield self.go
        finally:
            self.held = ""
            self.go.set()

    async def stream(self, request: AskRequest, request_id: str) -> AsyncGenerator[Event]:
        async with aclosing(super().stream(request, request_id)) as events:
            async for event in events:
                while event.type == self.held and not self.go.is_set():
                    await asyncio.sleep(0.01)
                yield event

    async def served(self) -> str | None:
        await asyncio.to_thread(self._retriever.reload)
        return self._retriever.index_version


@contextmanager
def working(uploads: Uploads) -> Iterator[None]:
    """Files that are uploaded meanwhile are read, in a thread."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(uploads.run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait({task})))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


class Line:
    """A port of its own that leads to the server's, while it is up."""

    def __init__(self, url: str) -> None:
        self._to = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._up = True
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Every connection ends, and no new one is let through."""
        self._up = False
        for end in tuple(self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._up = True

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with ThreadPoolExecutor(64) as pool, suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                if not self._up:
                    near.close()
                    continue
                far = socket.create_connection(self._to)
                pool.submit(self._pump, near, far)
                pool.submit(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        self._ends.add(source)
        with source, suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        self._ends.discard(source)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
