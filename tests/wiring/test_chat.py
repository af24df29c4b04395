"""The OpenAI door, asked by the official client over a loopback socket."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from assay import errors as er
from assay import events as ev
from assay import schemas as s
from assay.chat import SOURCES, model_names
from deployments.api import make_api
from tests.wiring.scripted_driver import ANSWER, CITATION, ScriptedDriver, Step, response, whole
from tests.wiring.test_client import CONFIG, listening, until

QUESTION: Any = [{"role": "user", "content": "When may it end?"}]
LIST = f"{SOURCES}[1] Supply Agreement, 12 Term > 12.2 Termination, page 5 (contracts/supply-7.pdf)"


@pytest.fixture
def driver() -> ScriptedDriver:
    return ScriptedDriver()


@pytest.fixture
def client(driver: ScriptedDriver) -> Iterator[openai.OpenAI]:
    with listening(make_api(driver, CONFIG)) as url, client_of(url) as client:
        yield client


def client_of(url: str, **options: Any) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(trust_env=False)  # a proxy cannot reach our loopback
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http, **options)


def ask(client: openai.OpenAI, model: str = "assay", messages: Any = QUESTION, **more: Any) -> ChatCompletion:
    found: ChatCompletion = client.chat.completions.create(model=model, messages=messages, **more)
    return found


def annotations_of(message: Any) -> list[dict[str, Any]]:
    return [a if isinstance(a, dict) else a.model_dump() for a in message.annotations]


# ---- answers --------------------------------------------------------------------------------------------------------


def test_a_whole_answer(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    used = s.Usage(llm_calls=5, prompt_tokens=40, cached_tokens=30, completion_tokens=7)
    driver.script[-1] = ev.CompletedEvent(response=response().model_copy(update={"usage": used}))
    reply = ask(client, "assay-pipeline/contracts", max_tokens=300)
    message = reply.choices[0].message
    assert (reply.model, reply.choices[0].finish_reason) == ("assay-pipeline/contracts", "stop")
    assert message.content == ANSWER + LIST
    (annotation,) = message.annotations or []
    place = annotation.url_citation
    assert (place.title, place.url) == (CITATION.title, CITATION.uri)
    assert message.content[place.start_index : place.end_index] == ANSWER
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (40, 7, 47)
    assert reply.usage.prompt_tokens_details.cached_tokens == 30
    asked = driver.asked[0]
    assert (asked.question, asked.mode, asked.buckets) == ("When may it end?", "pipeline", ["contracts"])
    assert asked.most_tokens == 300


def test_the_same_answer_and_citations_by_every_door(client: openai.OpenAI) -> None:
    native = httpx.post(f"{client.base_url}answers", json={"question": "When may it end?"}, trust_env=False).json()
    plain = ask(client)
    chunks = list(client.chat.completions.create(model="assay", messages=QUESTION, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    streamed = [a for delta in deltas for a in getattr(delta, "annotations", None) or []]
    assert "".join(delta.content or "" for delta in deltas) == plain.choices[0].message.content
    assert plain.choices[0].message.content == native["answer"]["text"] + LIST
    assert [a["assay"] for a in streamed] == native["citations"]
    assert [a["assay"] for a in annotations_of(plain.choices[0].message)] == native["citations"]
    assert plain.model_extra is not None and chunks[-1].model_extra is not None
    for extras in (plain.model_extra["assay"], chunks[-1].model_extra["assay"]):
        assert (extras["citations"], extras["degraded"]) == (native["citations"], native["degraded"])
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_usage_of_a_stream_where_it_is_asked_for(client: openai.OpenAI) -> None:
    asked: Any = {"model": "assay", "messages": QUESTION, "stream": True}
    with_usage = list(client.chat.completions.create(**asked, stream_options={"include_usage": True}))
    assert (with_usage[-1].choices, with_usage[-1].usage is not None) == ([], True)
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**asked))


def test_reasoning_is_apart_from_the_answer(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    driver.script.insert(0, ev.ReasoningEvent(delta="Let me see."))
    message = ask(client).choices[0].message
    assert (message.model_extra or {})["reasoning_content"] == "Let me see."
    assert message.content == ANSWER + LIST


def test_each_citation_is_at_its_sentence(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    """Even where a sentence comes in pieces, and one has two citations."""
    other = CITATION.model_copy(update={"number": 2, "slot": "E2", "uri": "b.md", "page": None, "heading": []})
    driver.script = [
        ev.AnswerEvent(delta="One "),
        ev.AnswerEvent(delta="day. [1]"),
        ev.CitationEvent(citation=CITATION),
        ev.AnswerEvent(delta="\nTwo days. [2] [1]"),
        ev.CitationEvent(citation=other),
        ev.CitationEvent(citation=CITATION.model_copy(update={"page": 7})),
        ev.CompletedEvent(
            response=response().model_copy(
                update={"citations": [CITATION, other, CITATION.model_copy(update={"page": 7})]}
            )
        ),
    ]
    message = ask(client).choices[0].message
    places = [a["url_citation"] for a in annotations_of(message)]
    assert message.content is not None
    said = [message.content[p["start_index"] : p["end_index"]] for p in places]
    assert said == ["One day. [1]", "Two days. [2] [1]", "Two days. [2] [1]"]
    assert message.content.partition(SOURCES)[2].splitlines() == [
        "[1] Supply Agreement, pages 5, 7 (contracts/supply-7.pdf)",
        "[2] Supply Agreement (b.md)",
    ]


def test_a_clarification_is_said(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    clarification = s.Clarification(
        type="no_results", message="No passage is so new.", choices=[s.Choice(label="any date", count=60)]
    )
    last = response("clarify").model_copy(update={"answer": None, "citations": [], "clarification": clarification})
    driver.script = [ev.ClarifyEvent(clarification=clarification), ev.CompletedEvent(response=last)]
    reply = ask(client)
    assert reply.choices[0].message.content == "No passage is so new.\n- any date (60)"
    assert (reply.model_extra or {})["assay"]["status"] == "clarify"
    driver.script = [ev.CompletedEvent(response=last)]  # said at the end only
    assert ask(client).choices[0].message.content == "No passage is so new.\n- any date (60)"


# ---- messages -------------------------------------------------------------------------------------------------------


def test_history_is_what_people_and_answers_said(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    tool = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages: Any = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "assistant", "content": "Ahoy!"},
        {"role": "user", "content": [{"type": "text", "text": "When may"}, {"type": "text", "text": "it end?"}]},
        {"role": "assistant", "content": None, "tool_calls": [tool]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {"role": "assistant", "content": f"In 30 days. [1]{LIST}", "annotations": [], "refusal": None},
        {"role": "user", "content": "And the other one?"},
    ]
    ask(client, messages=messages)
    assert driver.asked[0].question == "And the other one?"
    assert driver.asked[0].history == [
        s.Turn(role="user", content="When may\nit end?"),
        s.Turn(role="assistant", content="In 30 days. [1]"),
    ]


def test_a_long_history_keeps_whole_turns(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    turns: Any = [{"role": role, "content": f"{role} {n}"} for n in range(100) for role in ("user", "assistant")]
    ask(client, messages=[*turns, *QUESTION])
    history = driver.asked[0].history
    assert 2 <= len(history) <= 20
    assert [(t.role, t.content) for t in history[-2:]] == [("user", "user 99"), ("assistant", "assistant 99")]
    assert history[0].role == "user"


def test_what_only_assay_has_goes_in_its_own_field(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    filters = {"field": "type", "op": "=", "value": "Supply"}
    ask(client, extra_body={"assay": {"filters": filters, "top_k": 3, "style": "extract"}})
    asked = driver.asked[0]
    assert asked.filters is not None
    assert (asked.filters.model_dump(), asked.top_k, asked.style) == (filters, 3, "extract")


# ---- refusals and faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": ["\n"]}, "stop"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"extra_body": {"best_of": 3}}, "best_of"),
        ({"extra_body": {"assay": {"topk": 3}}}, "assay.topk"),
        ({"max_tokens": 0}, "max_tokens"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a" * 8001}]}, "messages[0].content"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_is_not_supported_is_refused(
    client: openai.OpenAI, driver: ScriptedDriver, more: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **more)
    assert caught.value.param == param
    assert param in str(caught.value)
    assert not driver.asked


PREDICATE = {"field": "type", "op": "=", "value": "Supply"}
OPS = ["=", "!=", "<", "<=", ">", ">=", "in", "like", "is_null", "between"]


@pytest.mark.parametrize(
    ("filters", "code", "param", "allowed"),
    [
        ({**PREDICATE, "op": "=="}, "invalid_filter", "assay.filters.op", OPS),
        ({"and": [PREDICATE, {**PREDICATE, "op": "is"}]}, "invalid_filter", "assay.filters.and[1].op", OPS),
        ({**PREDICATE, "vaule": 1}, "unknown_field", "assay.filters.vaule", ["field", "op", "value"]),
        ({"and": []}, "invalid_filter", "assay.filters.and", []),
        ([], "invalid_filter", "assay.filters", []),
    ],
)
def test_a_filter_that_is_wrong_is_told_as_such(
    client: openai.OpenAI, driver: ScriptedDriver, filters: Any, code: str, param: str, allowed: list[str]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, extra_body={"assay": {"filters": filters}})
    body: Any = caught.value.body
    assert (caught.value.code, caught.value.param, body["allowed"]) == (code, param, allowed)
    assert f"'{param}'" in body["message"] and not driver.asked


@pytest.mark.parametrize("stream", [True, False])
def test_so_is_one_that_only_the_bucket_knows_to_be_wrong(
    client: openai.OpenAI, driver: ScriptedDriver, stream: bool
) -> None:
    said = "Bucket 'contracts' has no field 'tpye', as 'filters.field' says."
    driver.script = [er.UnknownField(said, "filters.field", ("type", "effective_date"))]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, stream=stream, extra_body={"assay": {"filters": {**PREDICATE, "field": "tpye"}}})
    body: Any = caught.value.body
    assert (caught.value.code, caught.value.param) == ("unknown_field", "assay.filters.field")
    assert (body["allowed"], body["message"]) == (
        ["type", "effective_date"],
        said.replace("filters.", "assay.filters."),
    )


def test_what_changes_nothing_is_ignored(client: openai.OpenAI) -> None:
    ask(client, temperature=0.7, top_p=0.9, seed=1, user="ann", n=1, tools=[], tool_choice="none", stop=None)


@pytest.mark.parametrize("model", ["gpt-5", "assay/", "assayx/contracts", "Assay"])
def test_no_such_model(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, model)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("fault", "kind", "code", "param"),
    [
        (
            er.UnknownBucket("There is no bucket 'x'.", "buckets[0]", ("contracts",)),
            openai.NotFoundError,
            "unknown_bucket",
            "model",
        ),
        (
            er.InvalidRequest("budget.answer_tokens is 9", "budget.answer_tokens"),
            openai.BadRequestError,
            "invalid_request",
            "assay.budget.answer_tokens",
        ),
        (er.Overloaded("The queue is full."), openai.InternalServerError, "overloaded", None),
        (ValueError("/srv/secret"), openai.InternalServerError, "internal", None),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_faults_have_that_apis_form(
    client: openai.OpenAI, driver: ScriptedDriver, fault: Exception, kind: type[openai.APIStatusError],
    code: str, param: str | None, stream: bool,
) -> None:  # fmt: skip
    driver.script = [fault]
    with pytest.raises(kind) as caught:
        ask(client, stream=stream)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert "secret" not in str(caught.value.body)
    assert ("retry-after" in caught.value.response.headers) == (code == "overloaded")


def test_a_fault_inside_the_stream_is_raised(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    driver.script = [ev.AnswerEvent(delta="It"), er.StageTimeout("generator: timeout")]
    chunks = client.chat.completions.create(model="assay", messages=QUESTION, stream=True)
    with pytest.raises(openai.APIError, match="timeout"):
        list(chunks)
    assert driver.running == 0


def test_closing_the_stream_ends_the_question(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    driver.script = [ev.AnswerEvent(delta="It"), 60.0]
    stream = client.chat.completions.create(model="assay", messages=QUESTION, stream=True)
    next(iter(stream))
    stream.close()
    until(lambda: driver.closed == 1)


def test_other_routes_of_this_door_say_no_in_its_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.get("/chat/nothing", cast_to=object)
    assert isinstance(caught.value.body, dict) and caught.value.code == "no_route"


# ---- Open WebUI -----------------------------------------------------------------------------------------------------


def test_open_webui(driver: ScriptedDriver) -> None:
    """As it asks (routers/openai.py, utils/middleware.py of its repository): it lists the models, streams with usage, and reads
    content, reasoning and annotations out of the deltas; what else it sends for itself must not be in the way."""
    sent = {"authorization": "Bearer none", "X-OpenWebUI-User-Name": "J%C3%B6rg", "X-OpenWebUI-Chat-Id": "c1"}
    said = {"role": "user", "content": [{"type": "text", "text": "When?", "cache_control": {"type": "ephemeral"}}]}
    before = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    tuned = {
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 4096,
        "reasoning_effort": "low",
        "stream_options": {"include_usage": True},
    }
    driver.script.insert(0, ev.ReasoningEvent(delta="Hm."))
    with (
        listening(make_api(driver, CONFIG)) as url,
        httpx.Client(base_url=f"{url}/v1", headers=sent, trust_env=False) as http,
    ):
        model = next(m["id"] for m in http.get("/models").json()["data"] if m["id"].endswith("/contracts"))
        asked = {"model": model, "messages": [*before, said], "stream": True, **tuned}
        lines = http.post("/chat/completions", json=asked).text.split("\n")
        task = {"model": model, "messages": [{"role": "user", "content": "### Task: a title"}], "stream": False}
        title = http.post("/chat/completions", json={**task, "max_completion_tokens": 1000}).json()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER + LIST
    assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["Hm."]
    cited = [a["url_citation"] for delta in deltas for a in delta.get("annotations", [])]
    assert [(c["title"], c["url"]) for c in cited] == [(CITATION.title, CITATION.uri)]
    assert events[-1]["choices"] == [] and "total_tokens" in events[-1]["usage"] and lines[-3] == "data: [DONE]"
    assert title["choices"][0]["message"]["content"]
    assert [turn.content for turn in driver.asked[0].history] == ["Hi", "Hello"]


# ---- models ---------------------------------------------------------------------------------------------------------


def test_models_are_modes_and_buckets(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    names = [model.id for model in client.models.list()]
    assert names == model_names(["contracts", "secret"])
    assert {"assay", "assay-pipeline", "assay-agentic/contracts"} <= set(names)
    assert client.models.retrieve("assay/contracts").owned_by == "assay"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("assay/contrcats")
    driver.describe_fault = er.StageUnavailable("retriever is not available")
    with pytest.raises(openai.InternalServerError):
        client.models.list()


def test_every_model_can_be_asked(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    for model in client.models.list():
        ask(client, model.id)
    assert len(driver.asked) == 9


@pytest.mark.anyio
async def test_the_async_client(driver: ScriptedDriver) -> None:
    with listening(make_api(driver, CONFIG)) as url:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", http_client=http) as client:
            create = client.chat.completions.create
            replies = await asyncio.gather(*(create(model="assay", messages=QUESTION) for _ in range(5)))
    assert {reply.choices[0].message.content for reply in replies} == {ANSWER + LIST}


def test_chunks_are_one_line_each_for_clients_that_split_at_any_separator(client: openai.OpenAI) -> None:
    body = {"model": "assay", "messages": QUESTION, "stream": True}
    text = httpx.post(f"{client.base_url}chat/completions", json=body, trust_env=False).text
    lines = [line for line in text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: ")) for line in lines[:-1])


def test_nothing_of_a_script_is_lost(client: openai.OpenAI, driver: ScriptedDriver) -> None:
    silent: list[Step] = [step for step in whole() if not isinstance(step, ev.AnswerEvent)]
    driver.script = silent  # a driver that tells its answer at the end only
    assert ask(client).choices[0].message.content == ANSWER + LIST
