"""The absolute and the relative residual of every evaluation of a solve."""

import copy
from typing import Any, NamedTuple

import tensorflow as tf

from deq_keras.core.structure import Nest
from deq_keras.diagnostics.subject import encoder, single_layer
from deq_keras.solvers import FixedPointSolver, SolveRequest


class ResidualTraces(NamedTuple):
    """The result of `residual_traces`.

    Attributes:
        absolute: Float tensor `(max_iter, batch)`. |f(z) - z| of every evaluation, NaN
            after a sample's last.
        relative: Float tensor `(max_iter, batch)`. |f(z) - z| / |f(z)|, likewise.
    """

    absolute: tf.Tensor
    relative: tf.Tensor


def residual_traces(
    model: Any, inputs: Nest, request: SolveRequest | None = None
) -> ResidualTraces:
    """Returns both residuals of every evaluation of a solve.

    `Solution.trace` has the residual of the solver's `stop_mode` only. This function
    repeats the solve with the other `stop_mode` and without a tolerance, which does not
    change the iterates, and removes the evaluations that the first solve did not need.
    It costs a second solve with the whole budget. The norms are Euclidean over the
    whole state, or the largest over positions if the `stop_mode` of the solver ends
    with `_max`.

    Args:
        model: `DEQ` layer, or a functional or sequential model with one.
        inputs: Inputs of the model.
        request: A `SolveRequest`, with an initial state, budget and tolerance. Defaults
            to `None`, the settings of the layer.

    Returns:
        A `ResidualTraces`.

    Raises:
        ValueError: If the model does not have exactly one `DEQ` layer.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(8))
    >>> traces = deq_keras.diagnostics.residual_traces(deq, np.ones((2, 3), "float32"))
    >>> traces.absolute.shape == traces.relative.shape == (deq.solver.max_iter, 2)
    True

    Reference:

    - `abs_trace` and `rel_trace` of locuslab/deq, with norms over the whole batch.
    """
    encode, layer = encoder(model), single_layer(model)
    problem = layer.problem(encode(inputs))
    request = layer.request(problem, request)
    own = layer.solver.solve(problem, request).trace
    mode, _, suffix = layer.solver.stop_mode.partition("_")
    repeated: FixedPointSolver = copy.copy(layer.solver)
    repeated.tol = None
    repeated.stop_mode = {"abs": "rel", "rel": "abs"}[mode] + (suffix and f"_{suffix}")
    other = repeated.solve(problem, request._replace(tol=None)).trace
    other = tf.where(tf.math.is_nan(own), own, other)
    return ResidualTraces(own, other) if mode == "abs" else ResidualTraces(other, own)
