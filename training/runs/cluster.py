"""The workers that `TF_CONFIG` names, without TensorFlow."""

import json
import os
from typing import NamedTuple

from ..errors import InputError

_VARIABLE = "TF_CONFIG"
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
# In the order in which TensorFlow counts them.
_TYPES = ("chief", "worker")


class Cluster(NamedTuple):
    """All workers, and which of them this process is.

    Attributes:
        addresses: list of `host:port`, the chief's first.
        index: int. The place of this process in it.
    """

    addresses: list
    index: int

    def folder(self, path):
        """Returns where this process writes: the chief at `path`, others beside it."""
        own = f"{path.name}-worker-{self.index}"
        return path.with_name(own) if self.index else path


def from_environment():
    """Returns the `Cluster` of the environment variable `TF_CONFIG`.

    Raises:
        InputError: if there is none, or it is not such a cluster.
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
    """Raises `InputError` if two workers have one address: each would take the other's
    calls, and both would wait for ever."""
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
