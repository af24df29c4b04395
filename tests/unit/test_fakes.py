"""The scripted model passes the suite that the real engine passes, so that the tests over it mean something."""

import pytest

from assay.schemas import Usage
from assay.types import Completion, ToolUse
from tests import contract_llm
from tests.fakes import ScriptedLLM

pytestmark = pytest.mark.anyio

SAYS: dict[str, str | Completion] = {
    "choice_holds": "yes",
    "regex_holds": "north 12",
    "grammar_holds": "flows through Paris.",
    "characters_stay_whole": contract_llm.SCRIPTS,
    "a_tool_is_called": Completion(
        "", "stop", Usage(llm_calls=1), tool_uses=(ToolUse("c1", "search", {"query": "France"}, '{"query": "France"}'),)
    ),
    "max_tokens_cut_with_reason_length": "Once upon a time there was a river that went on and on.",
    "closing_a_stream_early_is_quiet": "Once upon a time there was a river that went on and on.",
    "json_schema_holds": '{"city": "Paris", "tags": ["capital"]}',
}


@pytest.mark.parametrize("name", contract_llm.CHECKS)
async def test_contract(name: str) -> None:
    llm = ScriptedLLM(SAYS.get(name, "The capital of France is Paris."))
    await contract_llm.check(name, llm)
    assert llm.running == 0
