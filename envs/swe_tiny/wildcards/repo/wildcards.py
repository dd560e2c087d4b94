"""File name patterns: ? is any character, * any text."""


def matches(pattern, text):
    """Does the whole text fit the pattern?"""
    p = t = 0
    star = None  # where the last star was
    while t < len(text):
        if p < len(pattern) and pattern[p] == "*":
            star = p
            p += 1
        elif p < len(pattern) and pattern[p] in ("?", text[t]):
            p += 1
            t += 1
        elif star is not None and p == star + 1:
            t += 1  # the star takes this character
        else:
            return False
    return all(c == "*" for c in pattern[p:])


def select(names, include="*", exclude=""):
    """Names that fit a pattern of `include` and none of `exclude`; both separate by commas."""
    wanted = [p for p in include.split(",") if p]
    unwanted = [p for p in exclude.split(",") if p]
    return [
        n
        for n in names
        if any(matches(p, n) for p in wanted) and not any(matches(p, n) for p in unwanted)
    ]
