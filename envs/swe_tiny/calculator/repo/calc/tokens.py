"""Splits an expression into numbers and signs."""
import re

TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?)|([-+*/^()]))")


def tokens(text):
    text = text.rstrip()
    at = 0
    out = []
    while at < len(text):
        m = TOKEN.match(text, at)
        if m is None:
            raise SyntaxError(f"unexpected {text[at]!r} at {at}")
        out.append(float(m[1]) if m[1] else m[2])
        at = m.end()
    return out
