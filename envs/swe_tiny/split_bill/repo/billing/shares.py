"""Divides amounts of whole cents."""


def split(cents, weights):
    """Shares of an amount in proportion to weights (whole numbers, not negative)."""
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError("weights must not be negative, and some must be above 0")
    return [cents * w // total for w in weights]
