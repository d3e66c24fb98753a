"""Several heads at a time, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from threadpoolctl import ThreadpoolController


def each(work: Callable, items: Iterable) -> list:
    """``work(item)`` of every item, in order, on as many threads as torch uses.

    Inside, BLAS and OpenMP have one thread: threads of theirs under threads of ours wait for one another, and
    that costs more than the work.

    Examples
    --------
    >>> each(abs, [-1, 2, -3])
    [1, 2, 3]
    """
    import torch

    count = torch.get_num_threads()
    if count == 1:
        return [work(item) for item in items]
    libraries = ThreadpoolController()

    def alone():
        torch.get_num_threads()  # sets the number of a new thread, and would undo a limit set before
        libraries.limit(limits=1, user_api="openmp")

    with libraries.limit(limits=1, user_api="blas"), ThreadPoolExecutor(count, initializer=alone) as threads:
        return list(threads.map(work, items))
