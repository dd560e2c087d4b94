"""Which version is newer."""
from semver.parse import parse


def sort_key(text):
    """For sorted() and max(): older versions first; build metadata does not count."""
    v = parse(text)
    # A version without pre-release is newer than all its pre-releases.
    return (v.major, v.minor, v.patch, v.pre == (), v.pre)


def newest(versions, allow_pre=False):
    """The newest of some versions, or None."""
    fit = [v for v in versions if allow_pre or not parse(v).pre]
    return max(fit, key=sort_key, default=None)
