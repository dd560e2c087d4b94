"""Order of building things that need each other."""


class CycleError(ValueError):
    def __init__(self, members):
        super().__init__("cycle among: " + ", ".join(members))
        self.members = members


def order(needs):
    """Names so that each comes after all it needs; equal ones in alphabetical order.

    `needs` maps a name to the names it needs; those may lack an entry of their own.
    """
    waiting = {name: set(deps) for name, deps in needs.items()}
    for deps in needs.values():
        for dep in deps:
            waiting.setdefault(dep, set())
    done = []
    while waiting:
        ready = sorted(name for name, deps in waiting.items() if not deps)
        if not ready:
            if not done:
                raise CycleError(sorted(waiting))
            break
        for name in ready:
            del waiting[name]
        for deps in waiting.values():
            deps.difference_update(ready)
        done.extend(ready)
    return done
