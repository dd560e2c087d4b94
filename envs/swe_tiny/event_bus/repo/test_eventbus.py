from eventbus import EventBus


def test_order_and_results():
    bus = EventBus()
    bus.on("x", lambda n: n + 1)
    bus.on("x", lambda n: n * 2)
    assert bus.emit("x", 5) == [6, 10]


def test_other_events():
    bus = EventBus()
    bus.on("x", lambda: 1)
    assert bus.emit("y") == []


def test_off():
    bus = EventBus()
    handler = bus.on("x", lambda: 1)
    bus.off("x", handler)
    bus.off("x", handler)
    assert bus.emit("x") == []


def test_once_alone():
    bus = EventBus()
    bus.once("x", lambda: 1)
    assert bus.emit("x") == [1]
    assert bus.emit("x") == []
