"""Equilibria of earlier requests, to start the next ones from."""

import collections
import hashlib
import threading

import numpy as np

from deq_keras.checks import check_count
from deq_keras.solvers import DIVERGED


class EquilibriumCache:
    """Starts requests from the equilibria of earlier ones.

    Each sample of a request has a key: of a stream, such as a camera, or of its
    content, so that the same question asked again takes one evaluation. What was used
    last stays, what was used longest ago leaves. Threads may share a cache.

    An answer is that of the solver from another start: within its tolerance, but not
    bit for bit. Where that must not depend on what was asked before, do without.

    Args:
        ask: Function from requests to answers, dicts of arrays: an export with warm
            starts as `deq_keras.serving.load` returns it, or the `predict_on_batch` of
            a `WarmStartModel`.
        state_shapes: Dict of the names of the states to the shape of that of one
            sample, such as `{"initial_state": (8, 8, 24)}`.
        capacity: Positive integer. How many samples are remembered. Defaults to `256`.

    Call arguments:
        request: Dict of arrays; those with axes are `(batch, ...)`. Without states.
        keys: Sequence of hashable objects, one for each sample. Defaults to `None`:
            what is computed of the content of the sample.

    Returns:
        The answer, a dict of arrays.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> warm = deq_keras.serving.WarmStartModel(model)
    >>> cache = EquilibriumCache(warm.predict_on_batch, {"initial_state": (4,)})
    >>> first = cache({"inputs": np.ones((2, 3), "float32")}, keys=["left", "right"])
    >>> cache({"inputs": np.ones((1, 3), "float32")}, keys=["right"])["evaluations"]
    array([1], dtype=int32)
    """

    def __init__(self, ask, state_shapes, capacity=256):
        self.ask = ask
        self.state_shapes = {name: tuple(s) for name, s in state_shapes.items()}
        self.capacity = check_count("capacity", capacity)
        self._states = collections.OrderedDict()
        self._lock = threading.Lock()

    def __len__(self):
        return len(self._states)

    def __call__(self, request, keys=None):
        batch_size = max(len(array) for array in request.values() if np.ndim(array))
        keys = _digests(request, batch_size) if keys is None else list(keys)
        if len(keys) != batch_size:
            raise ValueError(
                "`keys` must have one for each sample of the request. Received: "
                f"{len(keys)} keys, {batch_size} samples."
            )
        answer = self.ask({**request, **self._starts(keys)})
        self._remember(keys, answer)
        return answer

    def _starts(self, keys):
        with self._lock:
            known = [self._states.get(key) for key in keys]
        return {
            name: np.stack([_start(states, name, shape) for states in known])
            for name, shape in self.state_shapes.items()
        }

    def _remember(self, keys, answer):
        failed = np.any(
            [answer[name] == DIVERGED for name in answer if name.endswith("status")],
            axis=0,
        )
        with self._lock:
            for row, key in enumerate(keys):
                self._states.pop(key, None)
                if not failed[row]:
                    self._states[key] = {
                        name: np.array(answer[_equilibrium(name)][row])
                        for name in self.state_shapes
                    }
            while len(self._states) > self.capacity:
                self._states.popitem(last=False)


def _start(states, name, shape):
    """What is not finite stands for the model's own start."""
    return np.full(shape, np.nan, "float32") if states is None else states[name]


def _equilibrium(name):
    return name.replace("initial_state", "equilibrium")


def _digests(request, batch_size):
    arrays = [np.asarray(x) for _, x in sorted(request.items()) if np.ndim(x)]
    return [
        hashlib.sha256(b"".join(_content(array[row]) for array in arrays)).digest()
        for row in range(batch_size)
    ]


def _content(array):
    return f"{array.dtype}{array.shape}".encode() + _bytes(array)


def _bytes(array):
    # The content of strings, and not where they lie.
    return repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
