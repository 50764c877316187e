"""Memory that threads free stays with the process."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="it is about glibc"
)

# Prints how many pages a thread gets anew for blocks that it has had before, without
# and with what a run changes.
_PAGES = """
import resource, threading
import numpy as np
from training.runs import freed_memory

def work():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for _ in range(5):
            blocks = [np.ones(2**16) for _ in range(100)]
            del blocks
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

def measure():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

measure()
freed_memory.keep()
measure()
"""


def _new_pages():
    tuned = ("MALLOC_", "GLIBC_TUNABLES")
    known = {k: v for k, v in os.environ.items() if not k.startswith(tuned)}
    command = [sys.executable, "-c", _PAGES]
    answer = subprocess.run(
        command, env=known, capture_output=True, text=True, check=True
    )
    return map(int, answer.stdout.split())


def test_threads_keep_freed_pages():
    left_alone, kept = _new_pages()
    assert left_alone > 1000
    assert kept < left_alone / 100
