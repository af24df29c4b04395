"""Readers of judged collections: each format, and what a damaged file is told by."""

import gzip
from pathlib import Path

import pytest

from assay.errors import InvalidRequest
from assay.eval.collection import collection, read_collection, regraded
from assay.eval.formats import Document, documents_of, judgments_of, queries_of


def file(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


BEIR = '{"_id": "a", "title": "On A", "text": "First."}\n\n{"_id": 7, "title": null, "text": "Second \\ud800."}\n'
TREC = """<DOC>
<DOCNO> FT-1 </DOCNO>
<HEADLINE>Rates &amp; prices</HEADLINE>
<TEXT><P>They <b>rose</b> fast.</P></TEXT>
</DOC>
<doc><docno>FT-2</docno> Bare words. </doc>
"""
SMART = ".I 1\n.T\na title\n.A\nSomebody\n.W\nits text\n.A\ngoes on\n.I 2\n.T\nempty\n.W\n\n.I\n"


def test_corpora(tmp_path: Path) -> None:
    assert documents_of(file(tmp_path, "b", BEIR)) == [
        Document("a", "On A", "First."),
        Document("7", "", "Second \ufffd."),
    ]
    assert documents_of(file(tmp_path, "t", TREC)) == [
        Document("FT-1", "Rates & prices", "They rose fast."),
        Document("FT-2", "", "Bare words."),
    ]
    assert documents_of(file(tmp_path, "s", SMART)) == [
        Document("1", "a title", "its text\n.A\ngoes on"),
        Document("2", "empty", ""),
    ]
    assert documents_of(file(tmp_path, "l", "x\tone\ttab\ny\ttwo\n")) == [
        Document("x", "", "one\ttab"),
        Document("y", "", "two"),
    ]


def test_gzipped_and_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "corpus" / "deep"
    folder.mkdir(parents=True)
    file(folder, "1.gz", gzip.compress(BEIR.encode()))
    file(folder, "2.sgml", TREC)
    assert [d.id for d in documents_of(tmp_path / "corpus")] == ["a", "7", "FT-1", "FT-2"]
    cut = file(tmp_path, "cut.gz", gzip.compress("".join(f"{n}\ttext {n}\n" for n in range(999)).encode())[:-20])
    with pytest.raises(InvalidRequest, match=r"cut\.gz:\d+: the gzip file is damaged"):
        documents_of(cut)


def test_queries(tmp_path: Path) -> None:
    topics = "<top>\n<num> Number: 301\n<title> Topic: rates &amp; prices\n\n<desc> Description:\nLong.\n</top>\n"
    assert queries_of(file(tmp_path, "t", topics)) == {"301": "rates & prices"}
    assert queries_of(file(tmp_path, "s", ".I 004\n.W\nwhat\nis\n.I 009\n.W\nwhy\n")) == {"1": "what is", "2": "why"}
    assert queries_of(file(tmp_path, "b", b'\xef\xbb\xbf{"_id": "q", "text": " two  words "}')) == {"q": "two words"}


def test_judgments(tmp_path: Path) -> None:
    beir = "query-id\tcorpus-id\tscore\nq 1\td 1\t2\nq 1\td 2\t0\n"
    assert judgments_of(file(tmp_path, "b", beir)) == {"q 1": {"d 1": 2, "d 2": 0}}
    assert judgments_of(file(tmp_path, "t", "301 0 FT-1 1\n301 0 FT-2 -2\n\n")) == {"301": {"FT-1": 1, "FT-2": -2}}
    assert judgments_of(file(tmp_path, "c", "1 184 2 \n1 29 2.0\n")) == {"1": {"184": 2, "29": 2}}


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (documents_of, '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}', "f:2: a second document 'a'"),
        (documents_of, '{"_id": "a", "text": "x"}\n{"_id": ', "f:2: no JSON"),
        (documents_of, '{"_id": "a", "text": "x"}\n[1]', "f:2: no JSON object"),
        (documents_of, '{"_id": "a"}', "f:1: 'text' must be text"),
        (documents_of, '{"text": "x"}', "f:1: '_id' must be text"),
        (documents_of, "<DOC>\n<TEXT>x</TEXT></DOC>", "f:1: a <DOC> without a <DOCNO>"),
        (documents_of, TREC + "<DOC>\n<DOCNO>FT-3</DOCNO> cut", "f:7: a <DOC> that is never closed"),
        (documents_of, "<DOC>\n<DOCNO>FT-0</DOCNO> cut\n" + TREC, "f:1: a <DOC> that is never closed"),
        (queries_of, "<top>\n<num> 1\n<title> x\n</top>\n<top>\n<num> 2", "f:5: a <top> that is never closed"),
        (documents_of, ".I 1\n.T\nx\n", "f:1: the entry '1' has no .W"),
        (documents_of, "a line of prose", "f:1: of no format that is known"),
        (documents_of, " \n", "holds no document"),
        (documents_of, b"x\tone\ny\t\xff\xfe", "f:2: not UTF-8"),
        (queries_of, '{"_id": "q", "text": " "}', "f:1: the query 'q' is empty"),
        (queries_of, "q\tx\nq\ty", "f:2: a second query 'q'"),
        (queries_of, "<top>\n<num> 1\n</top>", "f:1: a <top> without <num> or <title>"),
        (judgments_of, "q d", "f:1: 2 columns, but judgments have 3"),
        (judgments_of, "q d much", "f:1: the grade 'much' is no number"),
        (judgments_of, "q d nan", "f:1: the grade 'nan' is no number"),
        (judgments_of, "q d 0.5", "f:1: the grade '0.5' is no whole number"),
        (judgments_of, "q d 99", "f:1: the grade '99' is no whole number"),
        (judgments_of, "q d 1\nq d 2", "f:2: a second, other grade of 'd' for the query 'q'"),
        (judgments_of, "", "holds no judgment"),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, read: object, text: str | bytes, said: str) -> None:
    path = file(tmp_path, "f", text)
    with pytest.raises(InvalidRequest) as caught:
        read(path)  # type: ignore[operator]
    assert said in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"nowhere: cannot be read \(No such file"):
        documents_of(tmp_path / "nowhere")


def test_parts_must_belong_together(tmp_path: Path) -> None:
    docs, asked = [Document("d", "", "x"), Document("e", "", "y")], {"q": "x", "r": "y"}
    assert collection(docs, asked, {"q": {"d": 1, "gone": 0}, "r": {"e": 0}}, "f").queries == {"q": "x"}
    with pytest.raises(InvalidRequest, match="f: 1 of 2 judged queries are not among the queries, such as 's'"):
        collection(docs, asked, {"q": {"d": 1}, "s": {"d": 1}}, "f")
    with pytest.raises(InvalidRequest, match="f: 1 relevant documents are not in the corpus, such as 'gone'"):
        collection(docs, asked, {"q": {"d": 1, "gone": 2}}, "f")
    with pytest.raises(InvalidRequest, match="f: no query has a relevant document"):
        collection(docs, asked, {"q": {"d": 0}}, "f")


def test_gains() -> None:
    judged = {"q": {"a": 1, "b": 3, "c": -1}}
    assert regraded(judged, "linear") is judged
    assert regraded(judged, "exponential") == {"q": {"a": 1, "b": 7, "c": 0}}
    assert regraded(judged, "1=4,3=2") == {"q": {"a": 4, "b": 2, "c": 0}}
    with pytest.raises(InvalidRequest, match="the gains '1=x' are none of"):
        regraded(judged, "1=x")


def test_gains_are_applied_before_a_query_counts_as_answerable(tmp_path: Path) -> None:
    corpus, asked = file(tmp_path, "c", "d\tx\n"), file(tmp_path, "q", "1\tx\n2\ty\n")
    qrels = file(tmp_path, "r", "1 d 1\n2 d 5\n")
    assert read_collection(corpus, asked, qrels, "1=4,2=3").queries == {"1": "x"}
