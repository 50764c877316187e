"""Workers wait for each other at the start."""

import socket
import threading
import time

import pytest

from training.errors import InputError
from training.runs.cluster import Cluster, wait_for_workers


@pytest.fixture
def addresses():
    """Three addresses at which nobody listens."""
    servers = [socket.create_server(("localhost", 0)) for _ in range(3)]
    names = [f"localhost:{server.getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
    return names


def test_all_continue_when_the_last_starts(addresses):
    gone = []

    def come(index):
        wait_for_workers(Cluster(addresses, index), timeout=20)
        gone.append(index)
        # From here on TensorFlow listens.
        with socket.create_server(
            ("", int(addresses[index].partition(":")[2])), reuse_port=True
        ):
            done.wait()

    done = threading.Event()
    threads = [threading.Thread(target=come, args=[index]) for index in range(3)]
    for thread in threads[:2]:
        thread.start()
    time.sleep(0.3)
    assert not gone
    threads[2].start()
    end = time.monotonic() + 20
    while len(gone) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(gone) == [0, 1, 2]


def test_missing_worker_raises(addresses):
    for address in (addresses[1], "nowhere.invalid:5"):
        with pytest.raises(InputError, match=f"Worker 1 .* {address}"):
            wait_for_workers(Cluster([addresses[0], address], 0), timeout=0.1)


def test_used_address_raises(addresses):
    port = int(addresses[0].partition(":")[2])
    with socket.create_server(("", port)):
        with pytest.raises(InputError, match="cannot listen at localhost.*in use"):
            wait_for_workers(Cluster(addresses[:1], 0), timeout=0.1)
