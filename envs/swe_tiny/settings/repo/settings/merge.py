"""Puts one tree of settings over another."""


def merge(base, over):
    """`base` with the values of `over`; dicts are merged key by key, all else is replaced."""
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            base[key] = merge(base[key], value)
        else:
            base[key] = value
    return base
