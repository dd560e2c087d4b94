from settings.defaults import DEFAULTS
from settings.merge import merge


def load(*layers):
    """The defaults under some layers of settings, the last one on top."""
    result = dict(DEFAULTS)
    for layer in layers:
        unknown = set(layer) - set(DEFAULTS)
        if unknown:
            raise KeyError(f"unknown settings: {sorted(unknown)}")
        result = merge(result, layer)
    return result
