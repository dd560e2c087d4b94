import pytest

from durations import format_seconds, parse


@pytest.mark.parametrize("text, seconds", [("1h30m", 5400), ("45s", 45), ("1.5m", 90), ("1d1s", 86401)])
def test_parse(text, seconds):
    assert parse(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "1h,2m", "1x"])
def test_no_duration(text):
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(
    "seconds, text", [(0, "0s"), (61, "1m1s"), (3600, "1h0m0s"), (90000, "1d1h0m0s"), (-5, "-5s")]
)
def test_format(seconds, text):
    assert format_seconds(seconds) == text
