"""Configurations as they are typed."""

import pytest

from assay.config import Legs, RetrieverConfig
from assay.errors import InvalidRequest
from assay.eval.setups import PRESETS, setups


def test_all_known_ones_where_none_is_given() -> None:
    found = setups([])
    assert [s.name for s in found] == list(PRESETS)
    by_name = {s.name: s for s in found}
    plain = RetrieverConfig()
    assert by_name["default"].config == plain.model_copy(update={"timeout_s": by_name["default"].config.timeout_s})
    assert by_name["dense"].legs == ("dense",)
    assert by_name["rrf"].config.fusion == "rrf"
    assert by_name["link"].link_hop and not by_name["default"].link_hop


def test_one_s_own() -> None:
    dense, own = setups(
        ["dense", 'own={"fusion": "minmax", "dense_weight": 0.8, "legs": ["sparse", "dense", "link"], "k1": 0.9}']
    )
    assert dense.legs == ("dense",)
    assert (own.name, own.config.fusion, own.config.dense_weight) == ("own", "minmax", 0.8)
    assert own.legs == ("dense", "sparse") and own.link_hop
    assert own.index == Legs(k1=0.9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["bets"], "'bets' is no configuration"),
        (["a={"], "the configuration 'a' is no JSON"),
        (["a=[1]"], "the configuration 'a' must be a JSON object"),
        (['a={"fusoin": "rrf"}'], "the configuration 'a' has an unknown option 'fusoin'"),
        (['a={"fusion": "best"}'], "the configuration 'a', fusion: Input should be 'rrf', 'minmax' or 'weighted'"),
        (['a={"dense_weight": 2}'], "dense_weight: Input should be less than or equal to 1"),
        (['a={"legs": []}'], "legs: List should have at least 1 item"),
        (['a={"legs": ["sparse", "link"]}'], "legs: link weighs what it finds by the dense leg"),
        (['a={"implementation": "x:Y"}'], "unknown option 'implementation'"),
        (["dense", "dense={}"], "each configuration needs a name of its own"),
        (["={}"], "each configuration needs a name of its own"),
    ],
)
def test_faults_say_what_is_allowed(given: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        setups(given)
    assert said in str(caught.value)
    if "unknown option" in said:
        assert {"fusion", "legs", "dense_weight"} <= set(caught.value.allowed)
