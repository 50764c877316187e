"""Workers wait for one another, but not for ever."""

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


def test_all_go_on_when_the_last_has_come(addresses):
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
    time.sleep(0.5)
    assert not gone
    threads[2].start()
    end = time.monotonic() + 20
    while len(gone) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(gone) == [0, 1, 2]


def test_a_worker_that_does_not_come_is_named(addresses):
    words = f"Worker 1 does not answer at {addresses[1]} .*within 1 s"
    with pytest.raises(InputError, match=words):
        wait_for_workers(Cluster(addresses[:2], 0), timeout=1)


def test_an_address_that_is_not_known():
    with pytest.raises(InputError, match="Worker 1 does not answer at nowhere.invalid"):
        wait_for_workers(Cluster(["localhost:0", "nowhere.invalid:5"], 0), timeout=1)


def test_an_address_that_is_taken(addresses):
    port = int(addresses[0].partition(":")[2])
    with socket.create_server(("", port)):
        with pytest.raises(InputError, match="cannot listen at localhost.*in use"):
            wait_for_workers(Cluster(addresses[:1], 0), timeout=1)
