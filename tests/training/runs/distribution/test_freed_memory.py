import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="it is about glibc"
)

# Prints how many pages a thread gets anew for blocks that it has had before.
_PAGES = """
import resource, sys, threading
import numpy as np
from training.runs.platform_repairs import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def work():
    for rounds in (4, 10):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for _ in range(rounds):
            blocks = [np.ones(2**16) for _ in range(200)]
            del blocks
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def _new_pages(mode, **environment):
    tuned = ("MALLOC_", "GLIBC_TUNABLES")
    known = {k: v for k, v in os.environ.items() if not k.startswith(tuned)}
    command = [sys.executable, "-c", _PAGES, mode]
    answer = subprocess.run(
        command, env=known | environment, capture_output=True, text=True, check=True
    )
    return int(answer.stdout)


def test_a_thread_gets_no_page_twice():
    left_alone = _new_pages("leave")
    assert left_alone > 1000
    assert _new_pages("keep") < left_alone / 100


@pytest.mark.slow
def test_what_the_user_has_tuned_is_left_alone():
    tuned = {"MALLOC_TOP_PAD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    pages = [_new_pages(mode, **tuned) for mode in ("keep", "leave")]
    assert pages[0] == pytest.approx(pages[1], rel=0.1)
    assert pages[0] > 1000
