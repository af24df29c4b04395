"""Who goes first on a machine that several replicas share."""

import os
from contextlib import suppress
from pathlib import Path


def stand_back(niceness: int) -> None:
    """Give all threads of this process this niceness, but for those that are nicer; what they start inherits it.

    For good: only root may take it back. Linux only, where niceness is a thread's.
    """
    changed = niceness > 0
    while changed:  # again for what was started meanwhile by a thread whose turn had not come
        changed = False
        for task in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # a thread that has just ended
                thread = int(task.name)
                if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
                    os.setpriority(os.PRIO_PROCESS, thread, niceness)
                    changed = True
