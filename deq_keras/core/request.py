"""The settings of one solve."""

import math
from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras.core.checks import (
    check_integer,
    check_non_negative,
    check_optional_count,
)
from deq_keras.core.serialization import Configured
from deq_keras.core.structure import Nest

# The largest budget, which loops count in int32.
INT32 = 2**31 - 1


class LoopOptions(NamedTuple):
    """What a caller of a solver needs of its loop, such as a gradient or an export.

    Args:
        limit: Positive integer. Upper limit of a `max_iter` that is a tensor, where
            all shapes must be static. `None`: no limit.
        records_trace: Boolean. Whether the solution contains the residual of every
            evaluation. With a tiny cell, this costs several percent of the time.
        allows_compaction: Boolean. Whether a solver with `compact=True` may remove
            converged samples from the batch. A compacted loop has no gradient.
        checkpoints: Positive integer. Number of loop states that a gradient stores. It
            recomputes the evaluations in between; `max_iter` must be an integer.
            `None`: the gradient stores every evaluation.
        allows_arrays: Boolean. Whether a solver may keep its memory in arrays, which
            LiteRT and ONNX do not support.
        capacity: Positive integer. Number of evaluations for which a solver's memory
            has room if XLA does not know `max_iter`; a memory that is full starts
            again. `None`: XLA compiles anew for each `max_iter`.
    """

    limit: int | None = None
    records_trace: bool = True
    allows_compaction: bool = True
    checkpoints: int | None = None
    allows_arrays: bool = True
    capacity: int | None = None


class SolveRequest(NamedTuple):
    """The initial state of a solve, its budget, and its stopping criteria.

    Args:
        initial_state: Nest of floating-point tensors `(batch, ...)`. `DEQ.solve` and
            `DEQ.request` also accept `None`, the initial state of the layer; a name
            such as `"normal"`; and a `deq_keras.initial_states.InitialState`.
        max_iter: Positive integer, or an integer scalar tensor (new values need no
            retracing; values below 1 count as 1). Budget of function evaluations.
            `None`: the `max_iter` of the solver.
        tol: Float >= 0, or a float scalar tensor. `None`: the `tol` of the solver.
        seed: Integer, or int32 tensor of shape `(2,)`. Seeds the noise of the solver
            and everything else that is random. `None`: nothing is random.
        loop: `LoopOptions`, which gradients, scopes and exports set.

    Example:

    >>> request = deq_keras.solvers.SolveRequest(np.zeros((1, 3), "float32"), tol=1e-6)
    >>> solution = deq_keras.solvers.Anderson().solve(tf.cos, request)
    """

    initial_state: Nest = None
    max_iter: int | tf.Tensor | None = None
    tol: float | tf.Tensor | None = None
    seed: Any = None
    loop: LoopOptions = LoopOptions()


def check_request(request: Any, needs_state: bool = True) -> SolveRequest:
    """Returns a `SolveRequest` that a solver accepts.

    Args:
        request: Any object.
        needs_state: Boolean. Whether the request must have an initial state.

    Raises:
        ValueError: If it is not a request, lacks its initial state, or contains a value
            of another kind.
    """
    if not isinstance(request, SolveRequest):
        raise ValueError(
            "`request` must be a `deq_keras.solvers.SolveRequest`. Wrap the state and "
            "the options of the solve: SolveRequest(initial_state, max_iter=...). "
            f"Received: a request of type {type(request).__name__}."
        )
    state = request.initial_state
    if needs_state and (state is None or isinstance(state, str | Configured)):
        raise ValueError(
            "A solver needs a state of tensors to start from. Expected: "
            "SolveRequest(initial_state=tensors); `DEQ.request` returns one for the "
            f"initial state of a layer. Received: initial_state={state!r}."
        )
    request = request._replace(
        max_iter=as_max_iter(request.max_iter), tol=as_tol(request.tol)
    )
    if not isinstance(request.loop, LoopOptions):
        raise ValueError(
            "`loop` must be the `LoopOptions` of a gradient, a scope or an export. "
            f"Received: loop={request.loop!r}."
        )
    for name in ("limit", "checkpoints", "capacity"):
        if getattr(request.loop, name) is not None:
            check_optional_count(name, getattr(request.loop, name))
    return request


def as_max_iter(max_iter: Any) -> int | tf.Tensor | None:
    """Returns a budget: a positive integer, an int32 scalar tensor, or `None`."""
    if max_iter is None or (type(max_iter) is int and 1 <= max_iter <= INT32):
        return max_iter
    if not tf.is_tensor(max_iter):
        return check_integer("max_iter", max_iter, 1, INT32)
    _check_scalar("max_iter", max_iter, "an integer", lambda dtype: dtype.is_integer)
    # Casting a larger integer would wrap around to an empty budget.
    max_iter = tf.minimum(max_iter, min(tf.as_dtype(max_iter.dtype).max, INT32))
    return tf.cast(tf.maximum(max_iter, 1), tf.int32)


def as_tol(tol: Any) -> float | tf.Tensor | None:
    """Returns a tolerance: a float >= 0, a float scalar tensor, or `None`."""
    if tol is None or (type(tol) is float and 0.0 <= tol < math.inf):
        return tol
    if not tf.is_tensor(tol):
        return check_non_negative("tol", tol)
    _check_scalar("tol", tol, "a float", lambda dtype: dtype.is_floating)
    return tol


def _check_scalar(name: str, value: Any, kind: str, is_kind: Any) -> None:
    # A Keras variable has the name of its dtype.
    if value.shape.rank not in (0, None) or not is_kind(tf.as_dtype(value.dtype)):
        raise ValueError(
            f"`{name}` must be {kind} or {kind} scalar tensor. Received: {name} of "
            f"shape {value.shape} and dtype {tf.as_dtype(value.dtype).name}."
        )
