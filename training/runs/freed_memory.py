"""The memory that the threads of replicas free. Does not import TensorFlow."""

import ctypes
import os
import platform

_TOP_PAD, _MMAP_THRESHOLD = -2, -3  # Constants of malloc.h.
_THREAD_HEAP = 64 * 2**20  # Bytes. glibc returns a heap of this size when it is empty.


def keep():
    """Configures glibc to keep the memory that the threads of replicas free.

    glibc has heaps per thread and returns empty heaps to the system. A training step of
    two replicas spent a third of its time on zeroing pages that it received back. This
    function does nothing if the user's environment tunes malloc, or without glibc.
    """
    tuned = any(name.startswith("MALLOC_") for name in os.environ)
    if tuned or "GLIBC_TUNABLES" in os.environ or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_TOP_PAD, _THREAD_HEAP)
    # Setting the first option disables glibc's adaptation of the second from 128 KiB.
    libc.mallopt(_MMAP_THRESHOLD, _THREAD_HEAP // 2)
