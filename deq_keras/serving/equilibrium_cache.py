"""A cache of equilibria of earlier requests."""

import collections
import hashlib
import threading

import numpy as np

from deq_keras.core.checks import check_count
from deq_keras.solvers import CONVERGED


class EquilibriumCache:
    """Starts solves of requests from the equilibria of earlier requests.

    Each sample of a request has a key: the name of a stream, such as a camera, or a
    hash of its content, so that a repeated sample takes one evaluation. The cache
    evicts the least recently used sample first. Threads can share a cache.

    A response depends on earlier requests: it agrees with a cold solve to the tolerance
    of the solver, but not bit for bit.

    A stored state never costs a sample its convergence. The cache stores only states of
    converged samples: their residuals are within the tolerance of their request. If a
    sample does not converge from a stored state, the cache drops the state and repeats
    the solve from the model's own initial state; `evaluations` then counts both solves.
    A request with a small `max_iter` may need a larger `tol`: if no sample reaches the
    tolerance within the budget, nothing is stored.

    Args:
        ask: Function from a request to a response, both dicts of arrays: an export with
            warm starts, loaded by `deq_keras.serving.load`, or the `predict_on_batch`
            of a `WarmStartModel`.
        state_shapes: Dict from the names of the initial states to their shapes for one
            sample, such as `{"initial_state": (8, 8, 24)}`.
        capacity: Positive integer. Maximum number of stored samples. Defaults to `256`.

    Call arguments:
        request: Dict of arrays `(batch, ...)` and scalars, without initial states.
        keys: Sequence of hashable objects, one for each sample. Defaults to `None`, a
            hash of the content of each sample.

    Returns:
        The response, a dict of arrays.

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
        keys = _content_hashes(request, batch_size) if keys is None else list(keys)
        if len(keys) != batch_size:
            raise ValueError(
                "`keys` must have one for each sample of the request. Received: "
                f"{len(keys)} keys, {batch_size} samples."
            )
        states, is_warm = self._initial_states(keys)
        response = self.ask({**request, **states})
        is_lost = is_warm & ~_has_converged(response)
        if is_lost.any():
            response = self._with_cold_solves(request, response, is_lost)
        self._store(keys, response)
        return response

    def _initial_states(self, keys):
        """Returns the initial states, and a mask of samples with a stored one."""
        with self._lock:
            stored = [self._states.get(key) for key in keys]
        states = {}
        for name, shape in self.state_shapes.items():
            # A non-finite state selects the model's own initial state.
            cold = np.full(shape, np.nan, "float32")
            rows = [cold if state is None else state[name] for state in stored]
            states[name] = np.reshape(rows, (len(rows), *shape))
        return states, np.array([state is not None for state in stored], bool)

    def _with_cold_solves(self, request, warm, is_lost):
        """Returns a response in which lost samples start from the model's own state."""
        states = {}
        for name in self.state_shapes:
            state = warm[_equilibrium(name)]
            states[name] = np.where(_column(is_lost, state), np.float32(np.nan), state)
        cold = dict(self.ask({**request, **states}))
        # Converged samples keep their warm response, and count one solve.
        for name in warm:
            if _is("evaluations", name):
                cold[name] = cold[name] + warm[name]
        return {
            name: np.where(_column(is_lost, array), cold[name], array)
            for name, array in warm.items()
        }

    def _store(self, keys, response):
        has_converged = _has_converged(response)
        with self._lock:
            for row, key in enumerate(keys):
                self._states.pop(key, None)
                if has_converged[row]:
                    self._states[key] = {
                        name: np.array(response[_equilibrium(name)][row])
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


def _has_converged(response):
    statuses = [array for name, array in response.items() if _is("status", name)]
    return np.all(np.equal(statuses, CONVERGED), axis=0)


def _is(statistic, name):
    return name == statistic or name.endswith(f"_{statistic}")


def _column(mask, array):
    return mask.reshape(-1, *[1] * (np.ndim(array) - 1))


def _equilibrium(name):
    return name.replace("initial_state", "equilibrium")


def _content_hashes(request, batch_size):
    arrays = [np.asarray(x) for _, x in sorted(request.items()) if np.ndim(x)]
    return [
        hashlib.sha256(b"".join(_content(array[row]) for array in arrays)).digest()
        for row in range(batch_size)
    ]


def _content(array):
    header = f"{array.dtype}{array.shape}".encode()
    # The bytes of an object array are pointers; `repr` has the strings themselves.
    is_object = array.dtype.kind == "O"
    return header + (repr(array.tolist()).encode() if is_object else array.tobytes())
