"""Groups against an oracle in plain Python: generated documents that name some or none, generated holders, every path to a
document, and every way in which a document says who may see it.
"""

import asyncio
import pickle
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.access import Grant
from assay.batch import request_of
from assay.config import AuditConfig, ConversationsConfig, IngressConfig, Legs
from assay.errors import IndexFault, InvalidRequest, NotFound, UnknownBucket, UnknownField
from assay.groups import Groups, groups_of
from assay.index.buckets import BucketSchema
from assay.index.files import Layout
from assay.index.ingest import Ingestion, Report, find_sources
from assay.index.metadata import Given
from assay.index.store import State
from assay.keys import KeyFile
from assay.retrieve import LocalRetriever
from assay.schemas import AskRequest, Predicate
from assay.types import DocumentQuery, Leg, Scope, SearchQuery
from deployments.api import make_api
from tests.unit.index.fakes import WordEncoder
from tests.wiring.index.builders import DirectParser, retriever, search, write
from tests.wiring.scripted_driver import ScriptedDriver
from tests.wiring.test_api import in_process
from tests.wiring.test_keys import key

NAMES = ("legal", "hr", "ops")
SCHEMA = BucketSchema.model_validate({"fields": {"kind": {"type": "text"}}})


@dataclass(frozen=True)
class Doc:
    uri: str
    bucket: str
    groups: tuple[str, ...] | None
    kind: str

    @property
    def text(self) -> str:
        said = "" if self.groups is None else f"allowed_groups: [{', '.join(self.groups)}]\n"
        number = int(self.uri.removesuffix(".md"))
        body = f"The pump of {self.uri} holds water. See Unit Nr{(number + 5) % 24}, and Unit Nr{(number + 11) % 24}."
        return f"---\nkind: {self.kind}\n{said}---\n# Unit Nr{number}\n\n{body}\n"

    def seen(self, buckets: tuple[str, ...] | None, groups: Groups) -> bool:
        held = groups is None or self.groups is None or bool(set(self.groups) & set(groups))
        return held and (buckets is None or self.bucket in buckets)


def documents(seed: int) -> list[Doc]:
    """In three buckets; the third has documents for groups alone, so that it may not be there at all for somebody."""
    rng = np.random.default_rng(seed)

    def named(bucket: str) -> tuple[str, ...] | None:
        if bucket != "third" and rng.random() < 0.4:
            return None
        return tuple(name for name in NAMES if rng.random() < 0.4)

    def one(number: int) -> Doc:
        bucket = ("first", "second", "third")[number % 3]
        return Doc(f"{number}.md", bucket, named(bucket), ("Lease", "Supply")[int(rng.integers(2))])

    return [one(number) for number in range(24)]


def ingest(folder: Path, index: Path, bucket: str, schema: BucketSchema | None = SCHEMA) -> Report:
    encoder, sources = WordEncoder(dim=64), find_sources([folder], folder)
    given_ = Given([source.path for source in sources])
    run = Ingestion(
        Layout(str(index)), bucket, sources, encoder, encoder.embed_now, DirectParser(), schema=schema, given=given_
    )
    return run.run(Legs(), rebuild_rows=0)


Held = tuple[LocalRetriever, list[Doc]]


@pytest.fixture(scope="module", params=[1, 2])
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Held:
    folder, docs = tmp_path_factory.mktemp("groups"), documents(request.param)
    for bucket in ("first", "second", "third"):
        files = {doc.uri: doc.text for doc in docs if doc.bucket == bucket}
        ingest(write(folder / bucket, files), folder / "index", bucket)
    return retriever(folder / "index", WordEncoder(dim=64)), docs


GROUPS = st.one_of(st.none(), st.lists(st.sampled_from((*NAMES, "other")), unique=True).map(tuple))
BUCKETS = st.sampled_from([None, ("first",), ("first", "second"), ("third",), ("second", "third")])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=GROUPS,
    buckets=BUCKETS,
    legs=st.sampled_from([("dense",), ("sparse",), ("dense", "sparse")]),
    link_hop=st.booleans(),
    kind=st.sampled_from([None, "Lease", "Nothing"]),
)
def test_a_search_finds_what_may_be_seen_and_counts_nothing_else(
    held: Held, groups: Groups, buckets: tuple[str, ...] | None, legs: tuple[Leg, ...], link_hop: bool, kind: str | None
) -> None:
    r, docs = held
    mine = [doc for doc in docs if doc.seen(buckets, groups)]
    wanted = {doc.uri for doc in mine if kind in (None, doc.kind)}
    filters = Predicate(field="kind", op="=", value=kind) if kind else None
    query = SearchQuery(
        ("pump water", "what holds the unit"), buckets or (), filters, legs=legs, link_hop=link_hop and "dense" in legs,
        top_k=100, facets=("kind", "bucket", "title"), context_chars=500, groups=groups,
    )  # fmt: skip
    there = {doc.bucket for doc in docs if doc.seen(None, groups)}
    if set(buckets or ()) - there:
        with pytest.raises(UnknownBucket) as told:
            search(r, query)
        assert set(told.value.allowed) == there
        return
    found = search(r, query)
    assert {hit.chunk.uri for hit in found.hits} == wanted
    assert found.explain.allowed_rows == len(wanted)
    assert found.explain.total_rows == sum(doc.seen(None, groups) for doc in docs)
    if not wanted:
        assert found.explain.count_without == len(mine)
    for field in ("kind", "bucket"):
        assert {v.value: v.count for v in found.facets[field].values} == Counter(
            getattr(doc, field) for doc in docs if doc.uri in wanted
        )
    said = repr([found.facets, [hit.context for hit in found.hits]])
    assert not any(f"The pump of {doc.uri} " in said for doc in docs if doc not in mine)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=GROUPS, buckets=BUCKETS)
def test_buckets_and_lookups_tell_of_the_same(held: Held, groups: Groups, buckets: tuple[str, ...] | None) -> None:
    r, docs = held
    mine = [doc for doc in docs if doc.seen(None, groups)]
    told = asyncio.run(r.describe(Scope((), None, groups)))
    assert {info.name: info.documents for info in told} == Counter(doc.bucket for doc in mine)
    for info in told:
        (kind,) = info.fields
        assert set(kind.values) == {doc.kind for doc in mine if doc.bucket == info.name}
    everything = {
        hit.chunk.uri: hit.chunk.doc_id for hit in search(r, SearchQuery(("pump",), top_k=100, groups=None)).hits
    }
    assert len(everything) == len(docs)
    for doc in docs:
        query = DocumentQuery(everything[doc.uri], buckets or (), groups=groups)
        seen = []
        for part in (True, False):
            try:
                found = (
                    asyncio.run(r.document_lookup(query)).document
                    if part
                    else asyncio.run(r.get_document_metadata(query))
                )
                assert "allowed_groups" not in repr(found)  # in its text it stands, as front matter
                seen.append(found.uri == doc.uri)
            except (NotFound, UnknownBucket):
                seen.append(False)
        assert seen == [doc.seen(buckets, groups) and all(b in {d.bucket for d in mine} for b in buckets or ())] * 2


def test_nobody_filters_by_groups(held: Held) -> None:
    for query in (
        SearchQuery(("pump",), filters=Predicate(field="allowed_groups", op="=", value="legal"), groups=None),
        SearchQuery(("pump",), facets=("allowed_groups",), groups=None),
    ):
        with pytest.raises(UnknownField) as told:
            search(held[0], query)
        assert "allowed_groups" not in told.value.allowed


def test_whoever_says_nothing_of_groups_holds_none(held: Held) -> None:
    r, docs = held
    hits = search(r, SearchQuery(("pump",), top_k=100)).hits
    assert {hit.chunk.uri for hit in hits} == {doc.uri for doc in docs if doc.groups is None}


# ---- where documents say it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "groups"),
    [
        (["legal", "hr"], ["legal", "hr"]),
        ("legal, hr", ["legal", "hr"]),
        ("legal;hr|ops", ["legal", "hr", "ops"]),
        ("a@b.example", ["a@b.example"]),
        (["legal", "not a name"], ["legal"]),
        ("", []),
        ([], []),
        (["*"], []),
        (True, []),
        (7, ["7"]),
    ],
)
def test_what_is_written_wrongly_lets_nobody_in(said: Any, groups: list[str]) -> None:
    found, problems = groups_of({"allowed_groups": said})
    assert found == groups
    assert bool(problems) == (not groups or "not a name" in str(said))
    assert groups_of({"groups": said}) == (None, ())


@pytest.fixture
def told(tmp_path: Path) -> Any:
    """Files -> who sees which, and the report's reasons."""

    def who(**files: str) -> dict[str, list[str]]:
        named = {name.replace("__", "."): text for name, text in files.items()}
        ingest(write(tmp_path / "files", named), tmp_path / "index", "docs")
        r = retriever(tmp_path / "index", WordEncoder(dim=64))
        holders: dict[str, Groups] = {"nobody": (), "legal": ("legal",), "hr": ("hr",), "all": None}
        found = {
            name: {h.chunk.uri for h in search(r, SearchQuery(("pump",), top_k=50, groups=groups)).hits}
            for name, groups in holders.items()
        }
        return {
            uri: sorted(n for n, uris in found.items() if uri in uris) for uri in named if not uri.endswith(".json")
        }

    return who


@pytest.mark.parametrize(
    ("front", "seers"),
    [
        ("kind: Lease", ["all", "hr", "legal", "nobody"]),
        ("allowed_groups: [legal]", ["all", "legal"]),
        ("allowed_groups: legal, hr", ["all", "hr", "legal"]),
        ("allowed_groups:\n- hr", ["all", "hr"]),
        ("allowed_groups: []", ["all"]),
        ("allowed_groups:", ["all"]),
        ("allowed_groups: ~", ["all"]),
        ("allowed_groups: {legal: true}", ["all"]),
        ("allowed_groups: [[legal]]", ["all"]),
        ("allowed_groups: [legal\nkind: x", ["all"]),  # no YAML
        ("kind: x\nallowed_groups: legal\nand a line that is no field", ["all"]),  # no front matter
        ("\n".join(f"k{n}: v" for n in range(300)) + "\nallowed_groups: legal", ["all", "legal"]),
    ],
)
def test_front_matter(told: Any, front: str, seers: list[str]) -> None:
    assert told(a__md=f"---\n{front}\n---\n# Pump\n\nThe pump holds.\n") == {"a.md": seers}


def test_a_sidecar_counts_before_the_file_and_a_change_needs_no_parsing(told: Any, tmp_path: Path) -> None:
    text = "---\nallowed_groups: legal\n---\n# Pump\n\nThe pump holds.\n"
    assert told(a__md=text) == {"a.md": ["all", "legal"]}
    assert told(a__md=text, a__md__json='{"allowed_groups": ["hr"]}') == {"a.md": ["all", "hr"]}
    assert told(a__md=text, a__md__json='{"allowed_groups": []}') == {"a.md": ["all"]}
    (tmp_path / "files" / "a.md.json").unlink()
    assert told(a__md=text) == {"a.md": ["all", "legal"]}


def test_a_schema_cannot_have_the_field() -> None:
    for fields in ({"allowed_groups": {"type": "list"}}, {"who": {"type": "list", "from": ["allowed_groups"]}}):
        with pytest.raises(ValueError, match="allowed_groups"):
            BucketSchema.model_validate({"fields": fields})


def test_an_index_from_before_is_not_served_until_it_is_ingested_again(tmp_path: Path) -> None:
    """Its documents lie there without the column, and some of them name groups."""
    index = tmp_path / "index"
    files = write(tmp_path / "files", {"a.md": Doc("1.md", "docs", ("legal",), "Lease").text})
    ingest(files, index, "docs")
    layout = Layout(str(index))
    documents_ = lance.dataset(layout.documents)
    documents_.drop_columns(["allowed_groups"])
    _published_as_it_is(layout, documents_.latest_version)
    with pytest.raises(IndexFault, match="allowed_groups"):
        search(retriever(index, WordEncoder(dim=64)), "pump")
    ingest(files, index, "docs")
    r = retriever(index, WordEncoder(dim=64))
    assert not search(r, "pump").hits
    assert search(r, SearchQuery(("pump",), groups=("legal",))).hits


def _published_as_it_is(layout: Layout, version: int) -> None:
    from dataclasses import replace

    from assay.index.snapshot import publish
    from assay.index.store import Store, read_state

    state = read_state(layout)
    assert isinstance(state, State)
    store = object.__new__(Store)  # as an older version opened it: no column is added
    store._layout, store._synced_s, store.state = layout, 0.0, replace(state, documents=version)
    store._commit(state.chunks, version, state.next_id)
    publish(layout, store)


# ---- who leaves something behind ------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(tenant=st.sampled_from(("a", "")), one=st.tuples(BUCKETS, GROUPS), other=st.tuples(BUCKETS, GROUPS))
def test_who_sees_something_else_owns_something_else(tenant: str, one: Any, other: Any) -> None:
    """Conversations, kept answers, streams and jobs are of an owner; without keys, too, where a front end names groups."""

    def owner(buckets: tuple[str, ...] | None, groups: Groups) -> str:
        held = None if groups is None else tuple(sorted(groups))
        return Grant(tenant, buckets, frozenset(("ask",)), groups=held).owner

    same = one[0] == other[0] and (one[1] is None) == (other[1] is None) and set(one[1] or ()) == set(other[1] or ())
    assert (owner(*one) == owner(*other)) == same


# ---- who asks for whom ----------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("held", "said", "counts"),
    [
        (("legal", "hr"), None, ("hr", "legal")),
        (("legal", "hr"), "hr", ("hr",)),
        (("legal", "hr"), "hr, ops", ("hr",)),
        (("legal",), "ops", ()),
        (("legal",), "", ()),
        ((), "legal", ()),
        (None, "legal,ops", ("legal", "ops")),
        (None, None, None),
    ],
)
async def test_a_service_narrows_its_key_to_its_user(
    tmp_path: Path, held: Groups, said: str | None, counts: Groups
) -> None:
    file, driver = KeyFile(tmp_path / "keys.json"), ScriptedDriver()
    headers = key(file, groups=held) | ({} if said is None else {"x-assay-groups": said})
    config = IngressConfig(
        keys=str(tmp_path / "keys.json"),
        conversations=ConversationsConfig(store="memory"),
        audit=AuditConfig(folder=None),
    )
    async with in_process(make_api(driver, config)) as http:
        await http.post("/v1/answers", json={"question": "When?"}, headers=headers)
        await http.post("/v1/search", json={"question": "When?"}, headers=headers)
        assert [asked.groups for asked in (*driver.asked, *driver.searched)] == [counts, counts]
        for wrong in ({"x-assay-groups": "not a name"}, {"x-assay-groups": ",".join(map(str, range(300)))}):
            reply = await http.post("/v1/search", json={"question": "When?"}, headers=headers | wrong)
            assert (reply.status_code, reply.json()["error"]["field"]) == (422, "x-assay-groups")
        twice = [*headers.items(), ("x-assay-groups", "hr"), ("x-assay-groups", "legal")]
        assert (await http.post("/v1/search", json={"question": "When?"}, headers=twice)).status_code == 422
    assert len(driver.searched) == 1


def test_groups_travel_with_a_request_and_no_body_says_them() -> None:
    asked = AskRequest(question="When?").owned_by("a").seen_by(("legal",))
    for each in (pickle.loads(pickle.dumps(asked)), asked.model_copy(update={"question": "x"})):
        assert (each.groups, each.owner) == (("legal",), "a")
    assert AskRequest.model_validate(asked.model_dump()).groups == ()
    for body in ({"question": "x", "groups": ["legal"]}, {"question": "x", "_groups": ["legal"]}):
        with pytest.raises(ValueError, match="extra"):
            AskRequest.model_validate(body)


def test_rows_of_a_batch_are_asked_for_somebody() -> None:
    said = {None: (), "": (), "legal, hr": ("hr", "legal"), ("ops",): ("ops",)}
    assert {groups: request_of({"question": "x", "groups": groups}).groups for groups in said} == said
    for wrong in ("not a name", 7, ["a", 7]):
        with pytest.raises(InvalidRequest, match="groups"):
            request_of({"question": "x", "groups": wrong})
