import pytest

from settings import load


def test_defaults():
    assert load()["font"] == {"name": "serif", "size": 11}


def test_layers():
    got = load({"font": {"size": 12}}, {"folders": ["/tmp"], "font": {"name": "mono"}})
    assert got["font"] == {"name": "mono", "size": 12}
    assert got["folders"] == ["/tmp"]


def test_unknown():
    with pytest.raises(KeyError):
        load({"colours": {}})
