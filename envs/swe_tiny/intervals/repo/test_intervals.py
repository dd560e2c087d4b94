from intervals import gaps, merge, total_length


def test_disjoint_intervals_stay():
    assert merge([(4, 6), (0, 2)]) == [(0, 2), (4, 6)]


def test_touching_intervals_join():
    assert merge([(0, 2), (2, 3)]) == [(0, 3)]


def test_empty_intervals_vanish():
    assert merge([(5, 5), (7, 6)]) == []


def test_gaps():
    assert gaps([(2, 3), (5, 9)], 0, 7) == [(0, 2), (3, 5)]
