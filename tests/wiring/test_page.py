"""The page at ``/`` in a real Chromium, over a real index and the real loop.

Whatever happens here, the browser must have nothing to complain about: no script that ran from a document, no violation of the
policy, no error, no dialog, no request to anywhere else (``Tab.close``).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FilePayload, Locator, expect

from assay.config import ConversationsConfig, DocumentsConfig, IndexConfig, IngressConfig
from assay.events import CompletedEvent
from assay.index.uploads import Uploads
from assay.keys import KeyFile
from assay.schemas import Conflict, ConflictSide, Source
from deployments.api import make_api
from tests.unit.index.fakes import WordEncoder
from tests.wiring.chromium import Tab, chromium
from tests.wiring.index.builders import DirectParser, ingest, retriever, write
from tests.wiring.index.pdf import pdf
from tests.wiring.page_server import HeldDriver, Line, working
from tests.wiring.scripted_driver import ScriptedDriver, whole
from tests.wiring.test_client import listening

FILES = Path(__file__).parents[2] / "deployments" / "page"
# Runs if it is ever read as HTML: in text, in an attribute that it breaks out of, and as an address.
EVIL = (
    "\"'><script>window.ran=1</script><img src=x onerror=window.ran=1><svg onload=window.ran=1>javascript:window.ran=1"
)
MANUAL = """# Pump manual

Set the 🔧 aside first.

## Service

The pump is serviced each May by the harbour office. Its pressure is five bar.
"""
TITLE = json.dumps(f"Crane {EVIL}")
HOSTILE = f"---\ntitle: {TITLE}\n---\n# Crane\n\n## Lifting {EVIL}\n\nThe crane lifts nine tons {EVIL} on every working day.\n"
QUESTION = "When is the pump serviced?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    ingest(write(folder / "manuals", {"pump.md": MANUAL}), folder / "index", "manuals")
    ingest(write(folder / "odd", {"<img src=x onerror=window.ran=1>.md": HOSTILE}), folder / "index", "odd")
    return folder


@pytest.fixture(scope="module")
def driver(folder: Path) -> HeldDriver:
    return HeldDriver(retriever(folder / "index"), folder)


@pytest.fixture(scope="module")
def url(driver: HeldDriver, folder: Path) -> Iterator[str]:
    documents = DocumentsConfig(path=str(folder / "uploads"))
    index = IndexConfig(uri=str(folder / "index"))
    uploads = Uploads(documents, index, WordEncoder, driver.served, lambda limits: DirectParser(limits))
    config = IngressConfig(conversations=ConversationsConfig(store="memory"), documents=documents)
    with working(uploads), listening(make_api(driver, config)) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser: Browser, url: str) -> Iterator[Tab]:
    tab = Tab(browser, url)
    tab.page.goto("/")
    yield tab
    tab.close()


def ask(tab: Tab, question: str = QUESTION) -> Locator:
    """The turn of a question that has just been asked."""
    tab.page.get_by_label("Your question").fill(question)
    tab.page.get_by_role("button", name="Ask", exact=True).click()
    return tab.page.get_by_role("article").last


def answered(turn: Locator) -> Locator:
    expect(turn.locator(".facts")).to_be_visible()
    return turn.locator(".answer")


# ---- what is served -------------------------------------------------------------------------------------------------


def test_the_page_is_served_under_a_policy_that_lets_nothing_else_run(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False) as http:
        html = http.get("/")
        linked = ["/", *(f"/{path}" for path in re.findall(r'(?:href|src)="(page/[^"]+)"', html.text))]
        for path in linked:
            reply = http.get(path)
            policy = reply.headers["content-security-policy"]
            assert reply.status_code == 200
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert http.get(path, headers={"if-none-match": reply.headers["etag"]}).status_code == 304
        assert len(linked) > 3
        assert http.get("/page/__init__.py").status_code == 404
        assert http.get("/page/%2e%2e/api.py").status_code == 404
        assert not re.search(r"<script(?! type=\"module\" src)|<style|\son\w+=|\sstyle=", html.text)


def test_no_module_can_make_markup_of_a_text() -> None:
    modules = [file for file in FILES.iterdir() if file.suffix == ".js"]
    found = {
        file.name: hits
        for file in modules
        if (
            hits := re.findall(
                r"\w*(?:innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function)", file.read_text()
            )
        )
    }
    assert len(modules) > 10 and found == {}


# ---- asking ---------------------------------------------------------------------------------------------------------


def test_an_answer_streams_with_its_trace_and_a_citation_opens_its_place(tab: Tab, driver: HeldDriver) -> None:
    with driver.holding("answer") as go:
        turn = ask(tab)
        steps = turn.locator(".step-name")
        expect(steps.filter(has_text="Plan")).to_be_visible()
        expect(turn.locator(".step").filter(has_text="Search").get_by_text(re.compile(r"\d hits?"))).to_be_visible()
        expect(steps.filter(has_text="Grade: enough to answer")).to_be_visible()
        driver.held = "completed"
        cite = turn.locator(".answer .cite").first
        expect(cite).to_contain_text(re.compile(r"Source 1, Pump manual.*support\s+100 %"))
        expect(turn.locator(".facts")).to_be_hidden()  # and it has not ended yet
        go.set()
    expect(answered(turn)).to_contain_text("The pump is serviced each May by the harbour office.")
    cite.click()
    document = tab.page.get_by_role("complementary")
    expect(document.locator("mark")).to_have_text("The pump is serviced each May by the harbour office.")
    expect(document.locator("mark")).to_be_in_viewport()
    expect(document.locator(".crumb")).to_contain_text("Pump manual")
    expect(document.get_by_role("heading", name="Pump manual")).to_be_focused()
    tab.page.keyboard.press("Escape")
    expect(document).to_be_hidden()
    expect(cite).to_be_focused()


def test_a_conversation_is_found_again_renamed_and_deleted(tab: Tab) -> None:
    answered(ask(tab, question := "Which office does the service of the pump?"))
    tab.page.reload()
    side = tab.page.get_by_role("navigation", name="Conversations")
    text = answered(tab.page.get_by_role("article"))
    expect(text).to_contain_text("each May")
    expect(text.locator(".cite").first).to_be_visible()
    side.get_by_role("button", name=question, exact=True).hover()
    side.get_by_role("button", name=f"Rename {question}").click()
    side.get_by_label("Title").fill("Service of pumps")
    side.get_by_label("Title").press("Enter")
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Service of pumps")
    side.get_by_role("button", name="Delete Service of pumps").click()
    side.get_by_role("button", name="Delete", exact=True).click()
    expect(side.get_by_text("Service of pumps")).to_have_count(0)
    expect(tab.page.get_by_role("heading", name="Ask your documents")).to_be_visible()


def test_a_choice_goes_on_with_the_same_plan(tab: Tab) -> None:
    page = tab.page
    page.get_by_role("button", name="All documents").click()
    page.get_by_role("button", name="Add a filter").click()
    page.get_by_label("Field").select_option("title")
    page.get_by_label("Value").fill("Nothing")
    ask(tab)
    choice = page.get_by_role("button", name="without title")
    expect(choice).to_have_text(re.compile(r"without title = Nothing\s*\d+"))
    with page.expect_request("**/messages") as sent:
        choice.click()
    body = json.loads(sent.value.post_data or "")
    assert body["resume"].startswith("plan_") and "filters" not in body
    expect(answered(page.get_by_role("article").last)).to_contain_text("each May")
    expect(choice).to_be_disabled()


def test_files_are_uploaded_and_can_be_asked_about(tab: Tab) -> None:
    page = tab.page
    page.get_by_role("button", name="Add documents").click()
    dialog = page.get_by_role("dialog", name="Add documents")
    expect(dialog.get_by_label("Bucket")).to_have_value("manuals")
    winch = FilePayload(name="winch.pdf", mimeType="application/pdf", buffer=pdf("(The winch pulls eleven tons.) Tj"))
    broken = FilePayload(name="broken.pdf", mimeType="application/pdf", buffer=b"%PDF-1.7 nothing of the kind")
    dialog.locator("#files").set_input_files([winch, broken])
    dialog.get_by_role("button", name="Upload 2 files").click()
    expect(dialog).to_contain_text("1 of 2 files can be searched in manuals.")
    rows = dialog.get_by_role("listitem")
    expect(rows.filter(has_text="winch.pdf")).to_contain_text("Added, 1 passage")
    expect(rows.filter(has_text="broken.pdf")).to_contain_text("Failed")
    dialog.get_by_role("button", name="Close").click()
    text = answered(ask(tab, "How many tons does the winch pull?"))
    expect(text).to_contain_text("eleven tons")
    text.locator(".cite").first.click()
    expect(page.locator("#doc-facts")).to_contain_text("page 1")
    expect(page.get_by_role("separator", name="Page 1")).to_be_visible()


def test_what_the_server_refuses_is_told_with_its_field_and_what_it_may_be(tab: Tab) -> None:
    tab.allow("422")
    page = tab.page
    page.get_by_role("button", name="All documents").click()
    page.get_by_role("button", name="Add a filter").click()
    page.get_by_label("Field").select_option("ingested_at")
    page.evaluate(
        "document.querySelector('.rule input').type = 'text'"
    )  # a browser's own calendar lets nothing else in
    page.get_by_label("Value").fill("yesterday")
    fault = ask(tab).get_by_label("Error")
    expect(fault).to_contain_text("filters.and[0]")
    expect(page.get_by_label("Value")).to_have_attribute("aria-invalid", "true")


def test_a_question_can_be_stopped(tab: Tab, driver: HeldDriver) -> None:
    with driver.holding("answer"):
        turn = ask(tab)
        expect(turn.locator(".step.now")).to_have_text(re.compile("Writing the answer"))
        tab.page.get_by_role("button", name="Stop").click()
        expect(turn.get_by_text("Stopped.")).to_be_visible()
        tab.page.reload()  # the server knows it too
        expect(tab.page.get_by_text("Interrupted.")).to_be_visible()


# ---- a line that breaks ---------------------------------------------------------------------------------------------


def test_a_dropped_connection_is_taken_up_again(browser: Browser, url: str, driver: HeldDriver) -> None:
    line = Line(url)
    tab = Tab(browser, line.url)
    tab.allow("ERR_")  # the browser says of a connection that is refused that it is
    try:
        tab.page.goto("/")
        with driver.holding("answer") as go:
            turn = ask(tab)
            expect(turn.locator(".step.now")).to_have_text(re.compile("Writing the answer"))
            line.cut()
            expect(turn.locator(".step.now")).to_have_text(re.compile("Connection lost"))
            go.set()
            line.mend()
            expect(answered(turn)).to_contain_text("each May")
        names = turn.locator(".step-name").all_text_contents()
        assert len([name for name in names if name.startswith("Plan")]) == 1  # nothing was shown twice
        expect(turn.locator(".answer > *")).to_have_count(1)
    finally:
        line.close()
    tab.close()


def test_a_page_that_is_loaded_again_goes_on_with_the_answer(tab: Tab, driver: HeldDriver) -> None:
    with driver.holding("answer") as go:
        turn = ask(tab)
        expect(turn.locator(".step.now")).to_have_text(re.compile("Writing the answer"))
        tab.page.reload()
        turn = tab.page.get_by_role("article")
        expect(turn.locator(".step.now")).to_have_text(re.compile("Writing the answer"))
        go.set()
        expect(answered(turn)).to_contain_text("each May")


# ---- nothing runs ---------------------------------------------------------------------------------------------------


def test_a_document_full_of_scripts_is_shown_as_what_it_says(tab: Tab) -> None:
    turn = ask(tab, f"How many tons does the crane lift? {EVIL}")
    text = answered(turn)
    expect(text).to_contain_text("<script>window.ran=1</script>")
    turn.locator(".sources summary").click()
    expect(turn.locator(".source-title").first).to_contain_text("<script>")
    turn.locator(".answer .cite").first.click()
    document = tab.page.get_by_role("complementary")
    expect(document.locator("mark")).to_contain_text("onerror=")
    expect(document).to_contain_text("<img src=x onerror=window.ran=1>.md")
    expect(tab.page.get_by_role("navigation").locator(".name").first).to_contain_text("<script>")
    assert tab.page.evaluate("window.ran") is None


def test_nothing_that_an_event_says_is_markup(browser: Browser) -> None:
    """Every text of every event is the hostile one, but for names that the shapes fix."""
    *events, last = whole()
    assert isinstance(last, CompletedEvent)
    side = ConflictSide(number=1, slot="E1", value="", quote="")
    told = {
        "conflicts": [Conflict(kind="name", sides=[side])],
        "sources": [Source(number=1, doc_id="", bucket="", title="", uri="")],
    }
    events.append(last.model_copy(update={"response": last.response.model_copy(update=told)}))
    script = [type(event).model_validate(spoilt(event.model_dump(by_alias=True))) for event in events]  # type: ignore[union-attr]
    config = IngressConfig(conversations=ConversationsConfig(store="memory"))
    with listening(make_api(ScriptedDriver(*script), config)) as url:
        tab = Tab(browser, url)
        tab.page.goto("/")
        turn = ask(tab)
        answered(turn)
        assert turn.get_by_text("window.ran").count() > 10
        expect(turn.locator(".conflict strong")).to_have_text(EVIL)
        assert tab.page.evaluate("window.ran") is None
        tab.close()


FIXED = {
    "type",
    "kind",
    "state",
    "mode",
    "status",
    "terminated_by",
    "style",
    "id",
    "request_id",
    "slot",
    "doc_id",
    "intent",
}


def spoilt(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: spoilt(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [spoilt(each, name) for each in value]
    return EVIL if isinstance(value, str) and name not in FIXED else value


def test_the_policy_stops_what_would_run(browser: Browser, url: str) -> None:
    """The second wall: a line of ours that made markup of a text would throw, and a script in it would not run."""
    tab = Tab(browser, url)
    tab.allow("Content Security Policy", "TrustedHTML", "Trusted")
    tab.page.goto("/")
    threw = tab.page.evaluate(
        "(evil) => { try { document.body.innerHTML = evil } catch (fault) { return fault.name } }", EVIL
    )
    assert threw == "TypeError" and tab.wrong
    assert tab.page.evaluate("window.ran") is None
    tab.close()


# ---- for everybody --------------------------------------------------------------------------------------------------


def test_all_of_it_by_keyboard(tab: Tab) -> None:
    page, keys = tab.page, tab.page.keyboard
    expect(page.get_by_label("Your question")).to_be_focused()
    keys.type(QUESTION)
    keys.press("Enter")
    answered(page.get_by_role("article"))
    for _ in range(6):
        keys.press("Shift+Tab")
        if page.evaluate("document.activeElement.className").startswith("cite"):
            break
    keys.press("Enter")
    document = page.get_by_role("complementary")
    expect(document.locator("mark")).to_be_visible()
    keys.press("Tab")
    expect(page.get_by_role("button", name="Close the document")).to_be_focused()
    keys.press("Enter")
    expect(page.locator(".cite").first).to_be_focused()
    page.get_by_role("button", name="API key").focus()
    keys.press("Enter")
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    keys.press("Escape")
    expect(page.get_by_role("button", name="API key")).to_be_focused()
    expect(page.get_by_role("log")).to_contain_text("Answer complete, 1 source.")


@pytest.mark.parametrize("width", [360, 820, 1440])
def test_it_fits_and_axe_finds_nothing(browser: Browser, url: str, width: int) -> None:
    tab = Tab(browser, url, viewport={"width": width, "height": 800}, bypass_csp=True)  # axe is a script
    page = tab.page
    page.goto("/")
    expect(page.locator("#buckets button")).to_have_count(2)
    faults = violations(tab)
    turn = ask(tab)
    answered(turn)
    turn.locator(".trace summary").click()
    turn.locator(".sources summary").click()
    page.locator("#scope-open").click()
    page.get_by_role("button", name="Add a filter").click()
    faults += violations(tab)
    turn.locator(".answer .cite").first.click()
    expect(page.locator("#doc mark")).to_be_visible()
    faults += violations(tab)
    page.get_by_role("button", name="Close the document").click()
    page.get_by_role("button", name="Add documents").click()
    faults += violations(tab)
    page.keyboard.press("Escape")
    assert faults == []
    tab.close()


def violations(tab: Tab) -> list[str]:
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= tab.page.viewport_size["width"]  # type: ignore[index]
    tab.page.evaluate("Promise.all(document.getAnimations().map((each) => each.finished.catch(() => {})))")
    tab.page.emulate_media(color_scheme="light")
    found = Axe().run(tab.page).response["violations"]
    tab.page.emulate_media(color_scheme="dark")
    found += Axe().run(tab.page, options={"runOnly": ["color-contrast"]}).response["violations"]
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]


def test_the_conversations_on_a_narrow_screen(browser: Browser, url: str) -> None:
    tab = Tab(browser, url, viewport={"width": 360, "height": 700})
    page = tab.page
    page.goto("/")
    button, side = page.get_by_role("button", name="Conversations"), page.get_by_role("navigation")
    expect(side).to_be_hidden()
    button.click()
    expect(side.get_by_role("button", name="New conversation")).to_be_visible()
    expect(page.get_by_label("Your question")).to_be_visible()
    assert page.locator("#composer").evaluate("(composer) => composer.inert")
    page.keyboard.press("Escape")
    expect(side).to_be_hidden()
    expect(button).to_be_focused()
    tab.close()


def test_a_key_is_asked_for_kept_for_the_tab_and_forgotten(
    browser: Browser, driver: HeldDriver, tmp_path: Path
) -> None:
    file = KeyFile(tmp_path / "keys.json")
    key = file.create("acme", None, ["search", "ask"], 10_000, 16)[1]
    config = IngressConfig(keys=str(tmp_path / "keys.json"), conversations=ConversationsConfig(store="memory"))
    with listening(make_api(driver, config)) as url:
        tab = Tab(browser, url)
        tab.allow("401")
        page = tab.page
        page.goto("/")
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_contain_text("unauthorized")
        dialog.get_by_label("Key", exact=True).fill("assay_wrong_key")
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog.get_by_label("Key", exact=True)).to_have_value("")  # asked again
        dialog.get_by_label("Key", exact=True).fill(key)
        dialog.get_by_role("button", name="Use this key").click()
        expect(dialog).to_be_hidden()
        expect(answered(ask(tab))).to_contain_text("each May")
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.get_by_role("button", name="API key").click()
        dialog.get_by_role("button", name="Forget it").click()
        expect(dialog).to_contain_text("unauthorized")
        tab.close()
