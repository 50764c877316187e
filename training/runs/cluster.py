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
    except (ValueError, RecursionError) as error:
        raise _refused("JSON", text) from error
    cluster, task = _mapping(content, "cluster"), _mapping(content, "task")
    if not cluster or not cluster.keys() <= set(_TYPES):
        raise _refused(f"a `cluster` of {' and '.join(_TYPES)} alone", cluster)
    addresses = [_addresses(cluster, kind) for kind in _TYPES]
    _check_distinct(sum(addresses, []))
    kind, index = task.get("type"), task.get("index")
    if not isinstance(kind, str) or kind not in cluster:
        raise _refused(f"a task whose `type` is one of {list(cluster)}", task)
    number = _TYPES.index(kind)
    if type(index) is not int or not 0 <= index < len(addresses[number]):
        raise _refused(f"a task of an `index` below {len(addresses[number])}", task)
    return Cluster(sum(addresses, []), sum(map(len, addresses[:number])) + index)


def _mapping(content, key):
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, dict):
        raise _refused(f"a mapping with a mapping `{key}`", content)
    return value


def _addresses(cluster, kind):
    addresses = cluster.get(kind, [])
    if not isinstance(addresses, list) or not all(map(_is_address, addresses)):
        raise _refused(f"a list of `host:port` for `{kind}`", addresses)
    return addresses


def _is_address(address):
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("",) * 3
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    return bool(host) and is_number and 0 < int(port) < 2**16


def _check_distinct(addresses):
    """Raises `InputError` if two workers have the same address.

    The workers would respond to each other's calls and wait forever.
    """
    places = [name.casefold().rpartition(":") for name in addresses]
    places = [(host, int(port)) for host, _, port in places]
    for address, place in zip(addresses, places, strict=True):
        if places.count(place) > 1:
            raise _refused("a cluster in which all addresses differ", address)


def _refused(expected, received):
    return InputError(
        f"{_VARIABLE} must be {expected}, such as {_EXAMPLE}. Received: "
        f"{str(received)[:200]}."
    )


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
