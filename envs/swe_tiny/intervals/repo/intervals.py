"""Half-open intervals (start, end) on a line."""


def merge(intervals):
    """Smallest list of disjoint intervals, in order, that covers the same points."""
    merged = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def total_length(intervals):
    return sum(end - start for start, end in merge(intervals))


def gaps(intervals, low, high):
    """What of [low, high) no interval covers."""
    free = []
    at = low
    for start, end in merge(intervals):
        if start > at:
            free.append((at, min(start, high)))
        at = max(at, end)
        if at >= high:
            break
    if at < high:
        free.append((at, high))
    return free
