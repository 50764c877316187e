"""Memory that the threads of replicas free stays with the process."""

import ctypes
import os
import platform

_TOP_PAD, _MMAP_THRESHOLD = -2, -3  # Of malloc.h.
_HEAP_OF_A_THREAD = 64 * 2**20  # Bytes; glibc gives such a heap back when it is empty.


def keep_freed_memory():
    """Lets glibc keep what it would give back to the system, for all further threads.

    Each thread has heaps of its own there, and those that are empty are given back: a
    training step of two replicas spent a third of its time on zeroed pages that it got
    again. One device keeps them by itself. A process whose user has tuned malloc in its
    environment is left alone, and so are other libraries than glibc.
    """
    tuned = any(name.startswith("MALLOC_") for name in os.environ)
    if tuned or "GLIBC_TUNABLES" in os.environ or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_TOP_PAD, _HEAP_OF_A_THREAD)
    # To set the one ends the adaptation of the other, at 128 KiB.
    libc.mallopt(_MMAP_THRESHOLD, _HEAP_OF_A_THREAD // 2)
