"""The threads on which futures are completed.

Each future under way has a thread of its own. So a callback may wait for another future, which another thread
completes. A thread without work takes the next work, and ends if none comes for some seconds.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from ..worker import after_stores

__all__ = ["IDLE", "run"]

#: The seconds for which a thread without work waits for more.
_IDLE_S = 10.0
#: The seconds for which the end of a program waits for threads that still pass results on. No new results can come then.
_LAST_RESULT_S = 5.0


class _Threads:
    """Threads that begin every work at once. Their number is the largest number of works that were under way at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: The number of threads that wait for work, minus the number of works that wait for a thread.
        self._idle = 0
        self._alive: set[threading.Thread] = set()

    def run(self, work: Callable[[], None]) -> None:
        """Does ``work`` on a thread that does nothing else meanwhile. ``work`` must not raise."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._work.put(work)
                return
            thread = threading.Thread(target=self._run, args=([work],), name="ringpull-future", daemon=True)
            self._alive.add(thread)
        thread.start()

    def _run(self, given: list[Callable[[], None]]) -> None:
        while given:
            # No variable here may hold work that is done, because the work holds tensors.
            given.pop()()
            work = self._next()
            if work is not None:
                given.append(work)
            del work

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._idle += 1
        try:
            return self._work.get(timeout=_IDLE_S)
        except queue.Empty:
            pass
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._alive.discard(threading.current_thread())
                return None
        # There is work that needs this thread.
        return self._work.get()

    def end(self) -> None:
        """Waits for the threads. If a thread were in PyTorch's code when the interpreter ends, it would abort the process."""
        with self._lock:
            alive = list(self._alive)
        for _ in alive:
            self._work.put(None)
        end = time.monotonic() + _LAST_RESULT_S
        for thread in alive:
            thread.join(max(0.0, end - time.monotonic()))


#: The function in which a thread waits for work.
IDLE = _Threads._next.__name__

_threads = _Threads()
after_stores(_threads.end)
run = _threads.run
