"""A client of a running graph: the requests, shapes and events of this package over HTTP, blocking and for asyncio alike.

A fault is raised as the ``AssayError`` that the server named, whether it came before a stream or inside it.
"""

from assay.client.aio import AsyncClient
from assay.client.blocking import Client
from assay.client.wire import API_KEY, DEFAULT_URL, EventDecoder, NotAssay, Unreachable, fault_of

__all__ = ["API_KEY", "DEFAULT_URL", "AsyncClient", "Client", "EventDecoder", "NotAssay", "Unreachable", "fault_of"]
