"""The workers of a cluster from `TF_CONFIG`."""

import contextlib
import json
import os
import socket
import time
from typing import NamedTuple

from ..errors import InputError

_VARIABLE = "TF_CONFIG"
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
# Types of workers in TensorFlow's order.
_TYPES = ("chief", "worker")
# Errors of reading a `TF_CONFIG` that does not describe a cluster.
_INVALID = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
# Seconds.
_RETRY_INTERVAL = 0.2
_CONNECTION_TIMEOUT = 2.0


class Cluster(NamedTuple):
    """All workers and the index of this process.

    Attributes:
        addresses: List of strings `host:port`, starting with the chief.
        index: Non-negative integer. Index of this process in `addresses`.
    """

    addresses: list
    index: int

    def folder(self, path):
        """Returns the folder of this process: `path` for the chief, else a sibling."""
        own = f"{path.name}-worker-{self.index}"
        return path.with_name(own) if self.index else path


def from_environment():
    """Returns the `Cluster` of the environment variable `TF_CONFIG`.

    Raises:
        InputError: If it is missing or does not describe a cluster.
    """
    text = os.environ.get(_VARIABLE)
    if text is None:
        raise InputError(
            "`distribution.strategy: multi_worker` needs the environment variable "
            f"{_VARIABLE} in every worker, such as {_EXAMPLE}."
        )
    try:
        content = json.loads(text)
        cluster, task = content["cluster"], content["task"]
        if not cluster.keys() <= set(_TYPES):
            raise ValueError(f"the types of a cluster are {' and '.join(_TYPES)}")
        groups = {kind: cluster.get(kind, []) for kind in _TYPES}
        addresses = [address for group in groups.values() for address in group]
        places = list(map(_place, addresses))
        # Workers with the same address would respond to each other and wait forever.
        if len(set(places)) < len(places):
            raise ValueError("all addresses must differ")
        kind, index = task["type"], task["index"]
        if not 0 <= index < len(groups[kind]):
            raise ValueError(f"the index of the task must be in `cluster.{kind}`")
    except _INVALID as error:
        raise InputError(
            f"{_VARIABLE} must describe the cluster and the task of this process, such "
            f"as {_EXAMPLE}. ({type(error).__name__}: {error}) Received: {text[:200]}."
        ) from error
    return Cluster(addresses, index + (kind == "worker") * len(groups["chief"]))


def _place(address):
    """Returns the lower-case host and the port of an address `host:port`."""
    host, _, port = address.rpartition(":")
    if not host or not 0 < int(port) < 2**16:
        raise ValueError(f"an address must be `host:port`, not {address[:200]}")
    return host.casefold(), int(port)


def wait_for_workers(cluster, timeout):
    """Waits until all workers of a `Cluster` have started.

    TensorFlow itself would wait for minutes. Each worker listens at its own address
    until all others respond. Then TensorFlow listens there.

    Args:
        cluster: A `Cluster`.
        timeout: Float. Maximum time to wait, in seconds.

    Raises:
        InputError: If a worker does not respond in time, or the address of this process
            is in use.
    """
    end = time.monotonic() + timeout
    missing = dict(enumerate(cluster.addresses))
    del missing[cluster.index]
    with _listening(cluster.addresses[cluster.index]):
        while missing:
            reasons = {
                place: _connection_error(name) for place, name in missing.items()
            }
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
                time.sleep(_RETRY_INTERVAL)


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


def _connection_error(address):
    """Returns why no process responds at an address, or an empty string."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), _CONNECTION_TIMEOUT
        ):
            return ""
    except OSError as error:
        return error.strerror or str(error)
