"""The OpenAPI document is true: schemathesis sends what it allows and what it does not, to each operation and to chains.

All of its checks hold: no 500, only documented statuses, types and bodies, no negative input accepted, what is deleted is gone.
Without its pytest plugin, whose import would take longer than all of tests/unit.
"""

from tempfile import TemporaryDirectory

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.schemas import APIOperation
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.config import DocumentsConfig
from deployments.api import make_api
from tests.wiring.scripted_driver import ScriptedDriver
from tests.wiring.test_api import CONFIG

EXAMPLES = settings(
    max_examples=60,
    stateful_step_count=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


def from_here(app: ASGIApp) -> ASGIApp:
    """Without keys the door answers this machine alone, asked by its own name; schemathesis says that it is another."""

    async def local(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope = {**scope, "client": ("127.0.0.1", 1), "headers": [*headers, (b"host", b"localhost")]}
        await app(scope, receive, send)

    return local


UPLOADS = TemporaryDirectory(prefix="uploads-")
# A schema cannot say that a key was sent before, with another message.
REUSED = {"positive_data_acceptance": {"expected-statuses": ["2xx", "401", "403", "404", "409", "422", "429", "5xx"]}}
# It does not know that what breaks a schema by its size may be refused by its size.
REFUSED = {
    "negative_data_rejection": {
        "expected-statuses": ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422"]
    }
}
schema = schemathesis.openapi.from_asgi(
    "/openapi.json",
    from_here(make_api(ScriptedDriver(), CONFIG.model_copy(update={"documents": DocumentsConfig(path=UPLOADS.name)}))),
    config=schemathesis.Config.from_dict(
        {
            # It makes 4,000 requests a route, a minute even when other tests are chosen; random ones suffice.
            "phases": {"coverage": {"enabled": False}},
            "checks": REFUSED,
            "operations": [{"include-name": "POST /v1/conversations/{id}/messages", "checks": REUSED}],
        }
    ),
)


@pytest.mark.parametrize("operation", [found.ok() for found in schema.get_all_operations()], ids=lambda o: o.label)
def test_each_operation(operation: APIOperation) -> None:
    @EXAMPLES
    @given(case=operation.as_strategy())
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate()

    check()


def test_chains_of_operations() -> None:
    """What one answers is asked of another, as the links do that schemathesis finds in the document."""
    # Nobody works on jobs here, so that their events do not end; and a job's id is taken for that of a document.
    chains = schema.exclude(path_regex=r"/v1/documents/(jobs/.*/events|\{doc_id\})").as_state_machine()
    assert len([rule for rule in dir(chains) if "___20" in rule]) > 10
    chains.run(settings=settings(EXAMPLES, max_examples=20))
