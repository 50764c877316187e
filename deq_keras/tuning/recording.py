"""Solves that record after which evaluations the answer equals a reference."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.graphs import compiled
from deq_keras.core.problem import keras_masks
from deq_keras.core.readout import equal_answers, read_answers
from deq_keras.core.structure import Nest, where_rows
from deq_keras.solvers import (
    CONVERGED,
    Anderson,
    Broyden,
    FixedPointSolver,
    LoopOptions,
    Solution,
    SolveRequest,
)
from deq_keras.tuning.result import Outcome, Promise, upper_bound

Answer = Callable[[Nest], Nest]


class Recording(NamedTuple):
    """The solves of one solver.

    Attributes:
        residual: Float array `(max_iter, samples)`. Residual of each evaluation. NaN
            after a sample was not finite.
        agrees: Bool array `(max_iter, samples)`. Whether the answer after each
            evaluation equals the reference. False for samples without a reference.
    """

    residual: np.ndarray
    agrees: np.ndarray

    def read(self, tol: float | None) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yields every budget with the evaluations and the changes of its samples.

        Args:
            tol: Tolerance. `None`: the result is the last iterate, not the best one.
        """
        # Replay the solver's rules for each sample: it stops (`is_done`) at a residual
        # of `tol` or a non-finite one, and returns the best iterate so far (`taken`).
        size, count = self.residual.shape
        steps, samples = np.arange(size)[:, None], np.arange(count)
        is_finite = np.isfinite(self.residual)
        residual = np.where(is_finite, self.residual, np.inf)
        is_done, is_taken = ~is_finite, is_finite
        if tol is not None:
            before = np.minimum.accumulate(residual, axis=0)[:-1]
            is_taken = is_finite.copy()
            is_taken[1:] &= residual[1:] < before
            is_done = is_done | (residual <= tol)
        taken = np.maximum.accumulate(np.where(is_taken, steps, -1), axis=0)
        end = np.where(is_done.any(axis=0), is_done.argmax(axis=0), size - 1)
        for budget in range(1, size + 1):
            last = np.minimum(end, budget - 1)
            index = taken[last, samples]
            yield budget, last + 1, (index < 0) | ~self.agrees[index, samples]

    def outcome(self, solver: FixedPointSolver, promise: Promise) -> Outcome:
        """Returns the outcome of the tolerance and the budget of a solver."""
        for budget, evaluations, is_changed in self.read(solver.tol):
            if budget == solver.max_iter:
                break
        return outcome(evaluations, is_changed, promise)


def outcome(
    evaluations: np.ndarray, is_changed: np.ndarray, promise: Promise
) -> Outcome:
    """Returns the outcome of a setting from the items of `Recording.read`."""
    num_changed, count = int(is_changed.sum()), len(is_changed)
    bound = upper_bound(num_changed, count, promise.confidence)
    return Outcome(num_changed, count, bound, float(evaluations.mean()))


class Recorder:
    """Records solves of a `DEQ` layer.

    Args:
        encode: Function from inputs of the model to the inputs of the layer.
        layer: The `DEQ` layer.
        answer: Function from an output of the layer to answers.
        batch_size: Positive integer.
    """

    def __init__(
        self,
        encode: Callable[[Nest], Nest],
        layer: Any,
        answer: Answer,
        batch_size: int,
    ) -> None:
        self._encode = encode
        self._layer = layer
        self._answer = answer
        self._batch_size = batch_size

    def num_batches(self, data: Nest) -> int:
        """Returns the number of batches of a nest of arrays `(samples, ...)`."""
        return -(-_num_samples(data) // self._batch_size)

    def record(
        self,
        data: Nest,
        solvers: Sequence[FixedPointSolver],
        on_solve: Callable[[], None],
    ) -> tuple[list[Recording], int]:
        """Solves all samples with every solver, each up to its `max_iter`.

        Args:
            data: Nest of arrays `(samples, ...)`.
            solvers: Sequence of solvers. Their tolerances are ignored.
            on_solve: Called after the reference and after each solver of a batch.

        Returns:
            The `Recording` of each solver, and the number of samples without a
            reference.
        """
        own = self._layer.solver
        tight = {"max_iter": max(200, own.max_iter), "tol": 1e-6}
        references = [
            self._reference(solver)
            for solver in (
                Anderson(**tight),
                Broyden(**tight),
                own.from_config({**own.get_config(), **tight}),
            )
        ]
        traced = [self._recorded(solver) for solver in solvers]
        parts: list[list[Any]] = [[] for _ in solvers]
        num_missing = 0
        for inputs, mask, count in self._batches(data):
            reference, is_known = _first_converged(references, inputs, mask)
            is_known = is_known[:count]
            num_missing += int((~is_known).sum())
            on_solve()
            for solve, recorded in zip(traced, parts, strict=True):
                residual, agrees = solve(inputs, mask, reference)
                recorded.append((residual[:, :count], agrees[:, :count] & is_known))
                on_solve()
        recordings = [
            Recording(*(np.concatenate(one, axis=1) for one in zip(*part, strict=True)))
            for part in parts
        ]
        return recordings, num_missing

    def _batches(self, data: Nest) -> Iterator[tuple[Nest, Nest, int]]:
        """Yields inputs of the layer, their masks, and the number of samples."""
        count = _num_samples(data)
        for start in range(0, count, self._batch_size):
            # Repeated samples fill the last batch, so that all have the traced shape.
            rows = np.arange(start, start + self._batch_size) % count
            batch = tree.map_structure(lambda leaf: leaf[rows], data)
            inputs = self._encode(tree.map_structure(tf.convert_to_tensor, batch))
            yield inputs, keras_masks(inputs), min(self._batch_size, count - start)

    def _solve(
        self, solver: FixedPointSolver, inputs: Nest, mask: Nest, request: SolveRequest
    ) -> Solution:
        problem = self._layer.problem(inputs, mask)
        # Broyden's method traces much faster with a budget that is a tensor.
        budget = tf.constant(solver.max_iter)
        request = request._replace(
            max_iter=budget, loop=request.loop._replace(allows_compaction=False)
        )
        return solver.solve(problem, self._layer.request(problem, request))

    def _reference(self, solver: FixedPointSolver) -> Callable:
        def solve(inputs: Nest, mask: Nest) -> tuple[Nest, tf.Tensor]:
            request = SolveRequest(loop=LoopOptions(records_trace=False))
            solution = self._solve(solver, inputs, mask, request)
            answers = read_answers(self._answer, solution.value)
            return answers, tf.equal(solution.status, CONVERGED)

        return compiled(solve)

    def _recorded(self, solver: FixedPointSolver) -> Callable:
        agrees = tf.Variable(tf.zeros([solver.max_iter, self._batch_size], "bool"))

        def solve(inputs: Nest, mask: Nest, reference: Nest) -> tf.Tensor:
            # A negative tolerance stops no sample.
            agreement = _Agreement(self._answer, reference, agrees)
            request = SolveRequest(tol=tf.constant(-1.0), halting=agreement)
            return self._solve(solver, inputs, mask, request).trace

        traced = compiled(solve)

        def record(inputs: Nest, mask: Nest, reference: Nest) -> Recording:
            agrees.assign(tf.zeros_like(agrees))
            residual = traced(inputs, mask, reference)
            return Recording(residual.numpy(), agrees.numpy())

        return record


class _Agreement:
    """Writes into a variable where answers equal a reference.

    Has the methods of an `UnchangedAnswer`, but stops no sample.

    Args:
        answer: Function from a state to answers.
        reference: Answers of the batch.
        agrees: Bool variable `(max_iter, batch)`.
    """

    def __init__(self, answer: Answer, reference: Nest, agrees: tf.Variable) -> None:
        self._answer = answer
        self._reference = reference
        self._agrees = agrees

    def read_through(self, state_of: Callable[[Nest], Nest]) -> "_Agreement":
        answer = self._answer
        return _Agreement(
            lambda iterate: answer(state_of(iterate)), self._reference, self._agrees
        )

    def start(self, state: Nest, batch_size: tf.Tensor) -> tf.Tensor:
        """Returns the number of evaluations of each sample, 0."""
        return tf.zeros([batch_size], tf.int32)

    def update(self, count: tf.Tensor, state: Nest) -> tuple[tf.Tensor, tf.Tensor]:
        """Compares the answer of a new state with the reference."""
        answer = read_answers(self._answer, state)
        is_equal = equal_answers(answer, self._reference)
        self._agrees[count[0]].assign(is_equal)
        return count + 1, tf.zeros_like(is_equal)


def _first_converged(
    references: Sequence[Callable], inputs: Nest, mask: Nest
) -> tuple[Nest, np.ndarray]:
    """Returns the answers of the first converged reference, and where one converged."""
    answers, is_known = references[0](inputs, mask)
    for reference in references[1:]:
        if np.all(is_known):
            break
        others, is_solved = reference(inputs, mask)
        answers = where_rows(~is_known, others, answers)
        is_known |= is_solved
    return answers, is_known.numpy()


def _num_samples(data: Nest) -> int:
    return len(tree.flatten(data)[0])
