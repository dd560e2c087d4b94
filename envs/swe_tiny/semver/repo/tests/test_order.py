import pytest

from semver.order import newest, sort_key
from semver.parse import parse


def test_numbers():
    assert sorted(["1.10.0", "1.9.9", "0.20.0"], key=sort_key) == ["0.20.0", "1.9.9", "1.10.0"]


def test_pre_releases_come_first():
    assert sort_key("1.0.0-rc.1") < sort_key("1.0.0")
    assert sort_key("1.0.0-alpha") < sort_key("1.0.0-alpha.beta") < sort_key("1.0.0-beta")


def test_newest():
    assert newest(["1.0.0", "2.0.0-rc"]) == "1.0.0"
    assert newest(["1.0.0", "2.0.0-rc"], allow_pre=True) == "2.0.0-rc"
    assert newest([]) is None


@pytest.mark.parametrize("text", ["1.0", "01.0.0", "1.0.0-", "v1.0.0"])
def test_no_versions(text):
    with pytest.raises(ValueError):
        parse(text)
