"""Equilibria of earlier requests, to start the next ones from."""

import collections
import hashlib
import threading

import numpy as np

from deq_keras.checks import check_count
from deq_keras.solvers import CONVERGED


class EquilibriumCache:
    """Starts requests from the equilibria of earlier ones.

    Each sample of a request has a key: of a stream, such as a camera, or of its
    content, so that the same question asked again takes one evaluation. What was used
    last stays, what was used longest ago leaves. Threads may share a cache.

    An answer is that of the solver from another start: within its tolerance, but not
    bit for bit. Where that must not depend on what was asked before, do without.

    A stored state never costs a sample its convergence. The cache stores the states of
    converged samples alone: their residuals are within the tolerance of their request.
    If a sample does not converge from a stored state, the cache drops the state and
    asks once more, with the model's own initial state for that sample; the answer has
    the evaluations of both solves. So nothing is stored where no sample reaches the
    tolerance within its budget: a request with a small `max_iter` needs a larger `tol`.

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
        batch_size = _batch_size(request)
        keys = _digests(request, batch_size) if keys is None else list(keys)
        if len(keys) != batch_size:
            raise ValueError(
                "`keys` must have one for each sample of the request. Received: "
                f"{len(keys)} keys, {batch_size} samples."
            )
        states, is_warm = self._starts(keys)
        answer = self.ask({**request, **states})
        is_lost = is_warm & ~_has_converged(answer)
        if is_lost.any():
            answer = self._asked_cold(request, answer, is_lost)
        self._remember(keys, answer)
        return answer

    def _starts(self, keys):
        """Returns the states to start from, and which samples have a stored one."""
        with self._lock:
            known = [self._states.get(key) for key in keys]
        states = {
            name: np.reshape(
                [_start(one, name, shape) for one in known], (len(known), *shape)
            )
            for name, shape in self.state_shapes.items()
        }
        return states, np.array([one is not None for one in known], bool)

    def _asked_cold(self, request, answer, is_lost):
        """Returns an answer in which the lost samples start as the model does."""
        states = {
            name: np.where(_column(is_lost, x), np.float32(np.nan), x)
            for name in self.state_shapes
            for x in [answer[_equilibrium(name)]]
        }
        cold = self.ask({**request, **states})
        # The others stay as they were answered, and are not charged for it.
        return {
            name: np.where(_column(is_lost, x), _charged(name, cold[name], x), x)
            for name, x in answer.items()
        }

    def _remember(self, keys, answer):
        has_converged = _has_converged(answer)
        with self._lock:
            for row, key in enumerate(keys):
                self._states.pop(key, None)
                if has_converged[row]:
                    self._states[key] = {
                        name: np.array(answer[_equilibrium(name)][row])
                        for name in self.state_shapes
                    }
            while len(self._states) > self.capacity:
                self._states.popitem(last=False)


def _batch_size(request):
    sizes = {name: len(array) for name, array in request.items() if np.ndim(array)}
    if len(set(sizes.values())) != 1:
        raise ValueError(
            "All inputs of a request must have the same number of rows, one for each "
            f"sample. Received: {sizes}."
        )
    return next(iter(sizes.values()))


def _has_converged(answer):
    statuses = [array for name, array in answer.items() if _is("status", name)]
    return np.all(np.equal(statuses, CONVERGED), axis=0)


def _charged(name, cold, warm):
    return cold + warm if _is("evaluations", name) else cold


def _is(statistic, name):
    return name == statistic or name.endswith(f"_{statistic}")


def _column(mask, array):
    return mask.reshape(-1, *[1] * (np.ndim(array) - 1))


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
