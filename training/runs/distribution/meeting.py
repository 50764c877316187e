"""Waits until all workers have started: TensorFlow would wait for minutes."""

import contextlib
import socket
import time

from ...errors import InputError

_INTERVAL = 0.2
_ANSWER = 2.0


def meet(cluster, timeout):
    """Returns once all workers of a `Cluster` have come here, or gone on from here.

    Each listens at its own address until all others answer. After that TensorFlow does.

    Args:
        cluster: the `Cluster`.
        timeout: seconds.

    Raises:
        InputError: if one does not answer in that time, or the address of this process
            is not free.
    """
    end = time.monotonic() + timeout
    missing = dict(enumerate(cluster.addresses))
    del missing[cluster.index]
    with _listening(cluster.addresses[cluster.index]):
        while missing:
            reasons = {place: _trouble(name) for place, name in missing.items()}
            missing = {i: name for i, name in missing.items() if reasons[i]}
            if missing and time.monotonic() > end:
                place, address = next(iter(missing.items()))
                raise InputError(
                    f"Worker {place} does not answer at {address} ({reasons[place]}). "
                    f"It must start within {timeout} s of the others, which is "
                    "`distribution.start_timeout`, and TF_CONFIG must name it alike in "
                    "all of them."
                )
            if missing:
                time.sleep(_INTERVAL)


@contextlib.contextmanager
def _listening(address):
    port = int(address.rpartition(":")[2])
    try:
        server = socket.create_server(("", port), reuse_port=True)
    except OSError as error:
        raise InputError(
            f"This worker cannot listen at {address}, its address in TF_CONFIG: "
            f"{error.strerror}."
        ) from error
    with server:
        yield


def _trouble(address):
    """Returns why nobody answers at an address, or nothing where somebody does."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _ANSWER):
            return ""
    except OSError as error:
        return error.strerror or str(error)
