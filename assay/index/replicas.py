"""What the replicas that search say of themselves: which version of the index each of them serves."""

import time
from collections.abc import Callable

TELL_S = 1.0  # how often a replica says so, and how long it waits to be heard
SILENT_S = 5.0  # whoever has said nothing for so long is gone, and not waited for


class Replicas:
    """Known to the one process that writes. A replica is known before it serves, and looks at the index once more after that:
    so whoever is not known yet when something is published finds it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._told: dict[str, tuple[float, str | None]] = {}

    def told(self, replica: str, version: str | None) -> None:
        """``version``: None where it has nothing that it could search."""
        self._told[replica] = (self._clock(), version)

    def oldest(self, seen: str | None) -> str | None:
        """The oldest version that is served, with ``seen`` of a replica that was asked; None: one has none, or there were not
        ``SILENT_S`` yet to hear from all."""
        now = self._clock()
        self._told = {replica: told for replica, told in self._told.items() if now - told[0] <= SILENT_S}
        versions = [seen, *(version for _, version in self._told.values())]
        known = [version for version in versions if version is not None]
        if now - self._since < SILENT_S or len(known) < len(versions):
            return None
        return min(known, key=number_of)


def number_of(version: str) -> int:
    """A later version of an index has the higher one."""
    return int(version[1:].partition("-")[0])
