"""What is found of one group of problems: answers at budgets, and from other starts."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from deq_keras import diagnostics, solvers

from ..settling import (
    correlation,
    evaluations_until,
    finite,
    overthinking,
    still_falls,
)

STARTS = ("other", "zeros", "normal")


class FoundFrom(NamedTuple):
    """What is found from another start than the model's own, means over problems.

    Attributes:
        start: str. `"other"` is what was found for another problem.
        alignment: float. Of the state with that from the model's own start; `None`
            where one is not finite.
        agreement: float. The share of problems with the same answer.
        settled: Float. Fraction that meets the tolerance.
        falling: float. The share that does not, but whose residual still falls.
    """

    start: str
    alignment: float | None
    agreement: float
    settled: float
    falling: float


class FoundOfGroup(NamedTuple):
    """What is found of a `Group`, plain numbers and lists.

    Attributes:
        label: str.
        examples: int. How many.
        floor: int or `None`. See `Group`.
        budgets: list of ints, increasing.
        exact: list of floats, the share of problems that are right at every position at
            each budget.
        residuals: list of floats, the median after each evaluation up to the largest
            budget; `None` where it is not finite.
        evaluations: list of ints, of each problem until the tolerance is met, at most
            the largest budget.
        difficulty: list of numbers, of each problem, or `None`.
        correlation: float. Spearman's, of the two; `None` where one does not vary.
        overthinking: float. `exact` at the best budget less that at ten times it, where
            it was measured.
        settled: Float. Fraction of problems that meet the tolerance from the model's
            own start.
        falling: float. The share of problems that does not, but whose residual still
            falls at the largest budget.
        agreement: float. The share of pairs of starts that lead to the same answer.
        has_varied_scores: bool. Whether the final scores of problems differ; true, too,
            if their inputs do not, or no scores are known.
        starts: list of `FoundFrom`, the other starts.
    """

    label: str
    examples: int
    floor: int | None
    budgets: list
    exact: list
    residuals: list
    evaluations: list
    difficulty: list | None
    correlation: float | None
    overthinking: float
    settled: float
    falling: float
    agreement: float
    has_varied_scores: bool
    starts: list


class GroupMeasurement:
    """Measures a model on one `Group` after another.

    Args:
        model: a `WeightTiedModel`.
        budgets: increasing ints, some of them ten times others.
        solver: a `FixedPointIteration`, of which damping, tolerance and residual count.
        batch_size: int >= 3. The most problems that are solved at once.
        seed: int. Draws random starts.
    """

    def __init__(self, model, budgets, solver, batch_size, seed):
        self._model = model
        self._budgets = list(budgets)
        self._solver = solvers.FixedPointIteration(
            max_iter=self._budgets[-1],
            tol=solver.tol,
            stop_mode=solver.stop_mode,
            damping=solver.damping,
        )
        self._batch_size = batch_size
        self._seed = seed
        self._curve, self._comparison = (
            tf.function(function, reduce_retracing=True)
            for function in (self._curve_of, self._comparison_of)
        )

    def __call__(self, group):
        """Returns the `FoundOfGroup`."""
        batches = group.batches(self._batch_size)
        curves = [self._curve(inputs) for inputs, *_ in batches]
        residuals = np.concatenate([curve.residual for curve in curves], axis=1)
        right = [
            curve.right(targets, weights)
            for curve, (_, targets, weights) in zip(curves, batches, strict=True)
        ]
        exact = np.concatenate(right, axis=1).mean(axis=1).tolist()
        evaluations, _ = evaluations_until(self._solver.tol, residuals)
        difficulty = None
        if group.difficulty is not None:
            difficulty = np.asarray(group.difficulty).tolist()
        return FoundOfGroup(
            label=group.label,
            examples=len(group.inputs),
            floor=group.floor,
            budgets=self._budgets,
            exact=exact,
            residuals=[finite(median) for median in np.median(residuals, axis=1)],
            evaluations=evaluations.tolist(),
            difficulty=difficulty,
            correlation=difficulty and correlation(evaluations, difficulty),
            overthinking=overthinking(self._budgets, exact),
            **self._from_starts(batches),
        )

    def _from_starts(self, batches):
        found = [self._comparison(inputs) for inputs, *_ in batches]
        compared, scores = zip(*found, strict=True)
        alignment, same, settled, falling = (
            np.concatenate(parts, axis=1)
            for parts in zip(*map(_of_each_start, compared), strict=True)
        )
        agreement = [diagnostics.answer_agreement(one.answers) for one in compared]
        return {
            "settled": float(settled[0].mean()),
            "falling": float(falling[0].mean()),
            "agreement": float(np.concatenate(agreement).mean()),
            "has_varied_scores": self._vary(batches, compared, scores),
            "starts": [
                FoundFrom(
                    start,
                    finite(alignment[index].mean()),
                    float(same[index].mean()),
                    float(settled[1 + index].mean()),
                    float(falling[1 + index].mean()),
                )
                for index, start in enumerate(STARTS)
            ],
        }

    @staticmethod
    def _vary(batches, compared, scores):
        known = np.isfinite(np.concatenate([one.residual[0] for one in compared]))
        rows = np.concatenate(scores)[known]
        inputs = np.concatenate([inputs for inputs, *_ in batches])[known]
        return bool(np.any(rows != rows[:1]) or np.all(inputs == inputs[:1]))

    def _curve_of(self, inputs):
        return diagnostics.answers_by_budget(
            self._model,
            inputs,
            self._budgets,
            self._solver.damping,
            self._solver.stop_mode,
        )

    def _comparison_of(self, inputs):
        comparison = diagnostics.compare_initial_states(
            self._model, inputs, STARTS, self._solver, self._seed
        )
        return comparison, self._model.scores(comparison.value)


def _of_each_start(comparison):
    """Returns alignment and same answers `(starts, batch)`, and what has settled and
    what still falls `(1 + starts, batch)`."""
    answers = np.asarray(comparison.answers)
    is_same = answers[1:] == answers[0]
    is_same = is_same.reshape(*answers[1:].shape[:2], -1).all(axis=-1)
    settled = np.asarray(comparison.converged)
    falling = ~settled & still_falls(np.asarray(comparison.trace))
    return comparison.alignment, is_same, settled, falling
