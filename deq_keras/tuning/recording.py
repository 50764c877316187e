"""Records after which evaluations of a solve the prediction equals a reference."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core import nonfinite
from deq_keras.core.graphs import compile_function
from deq_keras.core.internals import keras_masks
from deq_keras.core.predictions import equal_predictions, read_predictions
from deq_keras.core.structure import Nest, StateStructure, where_rows, wide_dtype
from deq_keras.diagnostics.iterates import solve_and_observe
from deq_keras.solvers import (
    CONVERGED,
    Anderson,
    Broyden,
    Evaluation,
    FixedPointSolver,
    SolveRequest,
)
from deq_keras.tuning.result import Outcome, Promise, upper_bound

Predict = Callable[[Nest], Nest]


class Recording(NamedTuple):
    """The evaluations of one solver, of solves that spend the whole budget.

    Attributes:
        norms: Float array `(max_iter, samples, 2)`. |f(z)| and |f(z) - z| of each
            evaluation, as the `stop_mode` of the solver defines them.
        agrees: Bool array `(max_iter, samples)`. Whether the prediction after each
            evaluation equals the reference. False for samples without a reference.
        is_relative: Boolean. Whether the solver stops by the relative residual.
    """

    norms: np.ndarray
    agrees: np.ndarray
    is_relative: bool

    def read(self, tol: float) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yields every budget with the evaluations and the changes of its samples.

        Args:
            tol: Tolerance.
        """
        num_evaluations, trace = map(
            np.asarray,
            _replay(tf.constant(self.norms), tf.constant(tol), self.is_relative),
        )
        # The result is the iterate with the smallest residual so far.
        residual = np.where(np.isfinite(trace), trace, np.inf)
        before = np.minimum.accumulate(residual, axis=0)[:-1]
        improves = np.isfinite(residual)
        improves[1:] &= residual[1:] < before
        steps, samples = np.arange(len(trace))[:, None], np.arange(trace.shape[1])
        best = np.maximum.accumulate(np.where(improves, steps, -1), axis=0)
        for budget, index in enumerate(best, start=1):
            is_changed = (index < 0) | ~self.agrees[index, samples]
            yield budget, np.minimum(num_evaluations, budget), is_changed


class _ReplaySolver(FixedPointSolver):
    """Repeats a solve whose evaluations have the recorded norms.

    For the function (a, b) -> (a, 0) and the points (|f(z)|, |f(z) - z|), the loop of
    the solvers decides as in the recorded solve, with any tolerance.
    """

    def __init__(self, points: tf.Tensor, stop_mode: str) -> None:
        super().__init__(stop_mode=stop_mode)
        self.points = points

    def step(
        self, evaluation: Evaluation, memory: Any, num_evaluations: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        last = tf.shape(self.points)[0] - 1
        return self.points[tf.minimum(num_evaluations, last)], memory


@tf.function(reduce_retracing=True, autograph=False)
def _replay(
    points: tf.Tensor, tol: tf.Tensor, is_relative: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns evaluations and residuals of recorded solves with a tolerance."""
    solver = _ReplaySolver(points, "rel" if is_relative else "abs")
    size_only = tf.constant([1.0, 0.0], points.dtype)
    request = SolveRequest(points[0], max_iter=tf.shape(points)[0], tol=tol)
    solution = solver.solve(lambda point: point * size_only, request)
    return solution.num_evaluations, solution.trace


def outcome(
    evaluations: np.ndarray, is_changed: np.ndarray, promise: Promise
) -> Outcome:
    """Returns the outcome of a setting from evaluations and changes of its samples."""
    num_changed, count = int(is_changed.sum()), len(is_changed)
    bound = upper_bound(num_changed, count, promise.confidence)
    return Outcome(num_changed, count, bound, float(evaluations.mean()))


class Recorder:
    """Records solves of a `DEQ` layer.

    Args:
        encode: Function from inputs of the model to the inputs of the layer.
        layer: The `DEQ` layer.
        predict: Function from an output of the layer to predictions.
        batch_size: Positive integer.
    """

    def __init__(
        self,
        encode: Callable[[Nest], Nest],
        layer: Any,
        predict: Predict,
        batch_size: int,
    ) -> None:
        self._encode = encode
        self._layer = layer
        self._predict = predict
        self._batch_size = batch_size

    def num_batches(self, data: Nest) -> int:
        """Returns the number of batches of a nest of arrays `(samples, ...)`."""
        return -(-len(tree.flatten(data)[0]) // self._batch_size)

    def record(
        self,
        data: Nest,
        solvers: Sequence[FixedPointSolver],
        on_solve: Callable[[], None],
    ) -> tuple[list[Recording], int]:
        """Records the solves of every solver, each up to its `max_iter`.

        Args:
            data: Nest of arrays `(samples, ...)`.
            solvers: Sequence of solvers. Their tolerances are ignored.
            on_solve: Called after the reference and after each solver of a batch.

        Returns:
            The `Recording` of each solver, and the number of samples without a
            reference.
        """
        found, num_missing = self._run(data, map(self._record, solvers), on_solve)
        recordings = [
            Recording(np.stack(norms, axis=-1), agrees, solver.stop_mode[:3] == "rel")
            for (agrees, *norms), solver in zip(found, solvers, strict=True)
        ]
        return recordings, num_missing

    def measure(
        self,
        data: Nest,
        solvers: Sequence[FixedPointSolver],
        on_solve: Callable[[], None],
    ) -> tuple[list[tuple[np.ndarray, np.ndarray]], int]:
        """Like `record`, with the tolerances of the solvers; returns the evaluations
        and the changes of the samples, arrays `(samples,)`."""

        def compare(solve: Callable, *batch: Nest) -> tuple[tf.Tensor, tf.Tensor]:
            *inputs, reference = batch
            predictions, solution = solve(*inputs)
            agrees = equal_predictions(predictions, reference)
            agrees &= ~nonfinite.has_no_evaluation(solution)
            return agrees, solution.num_evaluations

        functions = [functools.partial(compare, self._solve(one)) for one in solvers]
        found, num_missing = self._run(data, functions, on_solve)
        return [(evaluations, ~agrees) for agrees, evaluations in found], num_missing

    def _run(
        self,
        data: Nest,
        functions: Iterable[Callable],
        on_solve: Callable[[], None],
    ) -> tuple[list[list[np.ndarray]], int]:
        """Returns the results of functions of `inputs`, `mask` and `reference`, arrays
        `(..., samples)` of which the first is a mask of agreeing samples."""
        own = self._layer.solver
        tight = {"max_iter": max(200, own.max_iter), "tol": 1e-6}
        first, *others = (
            self._solve(solver)
            for solver in (
                Anderson(**tight),
                Broyden(**tight),
                own.from_config({**own.get_config(), **tight}),
            )
        )
        functions = list(functions)
        parts: list[list[Any]] = [[] for _ in functions]
        num_missing, num_samples = 0, len(tree.flatten(data)[0])
        for start in range(0, num_samples, self._batch_size):
            # 1. Encode a batch. Repeated samples fill the last one, so that all have
            #    the traced shape.
            rows = np.arange(start, start + self._batch_size) % num_samples
            count = min(self._batch_size, num_samples - start)
            inputs = self._encode(
                tree.map_structure(lambda leaf: tf.convert_to_tensor(leaf[rows]), data)
            )
            mask = keras_masks(inputs)
            # 2. Compute the reference, with further solvers for samples of which the
            #    first solver does not find the equilibrium.
            reference, solution = first(inputs, mask)
            is_known = tf.equal(solution.status, CONVERGED)
            for solve in others:
                if not tf.reduce_all(is_known):
                    predictions, solution = solve(inputs, mask)
                    reference = where_rows(~is_known, predictions, reference)
                    is_known |= tf.equal(solution.status, CONVERGED)
            num_missing += int(tf.reduce_sum(tf.cast(~is_known[:count], tf.int32)))
            on_solve()
            # 3. Compare each function with it.
            for function, part in zip(functions, parts, strict=True):
                agrees, *results = function(inputs, mask, reference)
                arrays = [np.asarray(array) for array in (agrees & is_known, *results)]
                part.append([array[..., :count] for array in arrays])
                on_solve()
        joined = [
            [np.concatenate(one, axis=-1) for one in zip(*part, strict=True)]
            for part in parts
        ]
        return joined, num_missing

    def _problem(
        self, solver: FixedPointSolver, inputs: Nest, mask: Nest
    ) -> tuple[Any, SolveRequest]:
        problem = self._layer.problem(inputs, mask)
        request = self._layer.request(problem)
        # Broyden's method traces much faster with a budget that is a tensor.
        return problem, request._replace(max_iter=tf.constant(solver.max_iter))

    def _solve(self, solver: FixedPointSolver) -> Callable:
        """Returns a function of `inputs` and `mask` to predictions and a `Solution`."""

        def solve(inputs: Nest, mask: Nest) -> tuple[Nest, Any]:
            solution = solver.solve(*self._problem(solver, inputs, mask))
            return read_predictions(self._predict, solution.value), solution

        return compile_function(solve)

    def _record(self, solver: FixedPointSolver) -> Callable:
        """Returns a function of `inputs`, `mask` and `reference` to agreements and
        norms of all evaluations."""
        # Some solvers observe one evaluation more than the budget.
        shape = [solver.max_iter + 1, self._batch_size]
        agrees = tf.Variable(tf.zeros(shape, "bool"))
        dtype = wide_dtype(self._layer.cell.compute_dtype)
        norms = [tf.Variable(tf.zeros(shape, dtype)) for _ in range(2)]

        def solve(inputs: Nest, mask: Nest, reference: Nest) -> None:
            problem, request = self._problem(solver, inputs, mask)
            structure = StateStructure(request.initial_state)

            def observe(state: Nest, evaluation: Evaluation, count: tf.Tensor) -> None:
                predictions = read_predictions(self._predict, state)
                agrees[count - 1].assign(equal_predictions(predictions, reference))
                for rows, matrix in zip(norms, evaluation[1:3], strict=True):
                    norm = tf.norm(matrix, axis=1)
                    if solver.stop_mode.endswith("max"):
                        largest = structure.largest_norm(matrix)
                        norm = nonfinite.propagate_nonfinite(norm, largest)
                    rows[count - 1].assign(tf.cast(norm, dtype))

            solve_and_observe(solver, problem, request, request.max_iter, observe)

        traced = compile_function(solve)

        def record(inputs: Nest, mask: Nest, reference: Nest) -> list[tf.Tensor]:
            traced(inputs, mask, reference)
            return [rows.value()[: solver.max_iter] for rows in (agrees, *norms)]

        return record
