"""Calls functions when something happens."""


class EventBus:
    def __init__(self):
        self._handlers = {}

    def on(self, event, handler):
        self._handlers.setdefault(event, []).append(handler)
        return handler

    def off(self, event, handler):
        """Forgets a handler; it need not be there."""
        handlers = self._handlers.get(event, [])
        if handler in handlers:
            handlers.remove(handler)

    def once(self, event, handler):
        """Like on, for one event only."""

        def wrapper(*args):
            self.off(event, wrapper)
            return handler(*args)

        return self.on(event, wrapper)

    def emit(self, event, *args):
        """Calls the handlers in order; returns what they returned."""
        results = []
        for handler in self._handlers.get(event, []):
            results.append(handler(*args))
        return results
