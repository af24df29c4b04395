"""The OpenAPI document is true: schemathesis sends what it allows and what it does not, to each operation and to chains.

All of its checks hold: no 500, only documented statuses, types and bodies, no negative input accepted, what is deleted is gone.
Without its pytest plugin, whose import would take longer than all of tests/unit.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.schemas import APIOperation
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.answers import SqliteAnswers
from assay.config import AuditConfig, ConversationsConfig, DocumentsConfig, IndexConfig, IngressConfig
from assay.index.uploads import Uploads
from deployments.api import make_api
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, ingest, retriever, write
from tests.wiring.local_driver import LocalDriver
from tests.wiring.page_server import working
from tests.wiring.scripted_driver import ScriptedDriver
from tests.wiring.test_api import CONFIG
from tests.wiring.test_client import listening

MESSAGES = "POST /v1/conversations/{id}/messages"
KNOWN = Path(__file__).parents[1] / "schemathesis.toml"
_KNOWN = tomllib.loads(KNOWN.read_text())
# There are no documents here and no bounds below the document's, so that of all valid requests one kind alone is refused: a key
# that was sent before, with another message.
REUSED = [{**each, "include-name": MESSAGES} for each in _KNOWN["operations"] if MESSAGES in each["include-name"]]
EXAMPLES = settings(
    max_examples=60,
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
schema = schemathesis.openapi.from_asgi(
    "/openapi.json",
    from_here(make_api(ScriptedDriver(), CONFIG.model_copy(update={"documents": DocumentsConfig(path=UPLOADS.name)}))),
    # It makes 4,000 requests a route by its coverage, a minute even when other tests are chosen; random ones suffice.
    config=schemathesis.Config.from_dict({**_KNOWN, "operations": REUSED, "phases": {"coverage": {"enabled": False}}}),
)


@pytest.mark.parametrize("operation", [found.ok() for found in schema.get_all_operations()], ids=lambda o: o.label)
def test_each_operation(operation: APIOperation) -> None:
    @EXAMPLES
    @given(case=operation.as_strategy())
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate()

    check()


def test_its_command_from_outside(tmp_path: Path) -> None:
    """Over a socket and a real index, in which what is uploaded is read and what is deleted is gone. What one operation answers
    is asked of another, by the links that schemathesis finds in the document."""
    index = tmp_path / "index"
    ingest(write(tmp_path / "files", {"pump.md": "# Pump manual\n\nThe pump is serviced each May."}), index, "manuals")
    documents, found = DocumentsConfig(path=str(tmp_path / "uploads")), retriever(index)

    async def served() -> str | None:
        found.reload()
        return found.index_version

    uploads = Uploads(documents, IndexConfig(uri=str(index)), WordEncoder, served, lambda limits: DirectParser(limits))
    driver = LocalDriver(found, "{}", SqliteAnswers(tmp_path / "answers.db", 1000, 1), uploads)
    memory, silent = ConversationsConfig(store="memory"), AuditConfig(folder=None)
    config = IngressConfig(conversations=memory, documents=documents, audit=silent)
    with working(uploads), listening(make_api(driver, config)) as url:
        words = [
            "run",
            f"{url}/openapi.json",
            "--phases=examples,stateful",
            "--checks=all",
            "--max-examples=15",
            "--seed=1",
        ]
        program = Path(sys.executable).with_name("schemathesis")
        command = [str(program), f"--config-file={KNOWN}", "--no-color", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    covered = re.search(r"API Links: +(\d+) covered", done.stdout)
    assert covered is not None and int(covered[1]) >= 5, done.stdout


def test_ids_lead_to_what_they_are_of() -> None:
    """By the names of shapes and parameters schemathesis guesses which id of an answer another operation takes."""
    chains = [rule for rule in dir(schema.as_state_machine()) if "___20" in rule]
    of_a_document = ("GET_v1_documents_doc_id_", "DELETE_v1_documents_doc_id_")
    starts = {rule.partition("___")[0] for rule in chains if rule.endswith(of_a_document)}
    assert starts == {"GET_v1_documents", "GET_v1_documents_doc_id", "POST_v1_search"}, chains
