import pytest

from calc import evaluate


@pytest.mark.parametrize(
    "text, value",
    [("1+2*3", 7), ("(1+2)*3", 9), ("8/2/2", 2), ("5-3-1", 1), ("2^10", 1024), ("2*-3", -6),
     ("2^-1", 0.5), ("1.5*2", 3), ("--4", 4)],
)
def test_value(text, value):
    assert evaluate(text) == value


@pytest.mark.parametrize("text", ["", "1+", "(1", "2$3", ")"])
def test_no_expression(text):
    with pytest.raises(SyntaxError):
        evaluate(text)


def test_blanks():
    assert evaluate(" 1 + ( 2 ) ") == 3
    with pytest.raises(SyntaxError):
        evaluate("1 2")
