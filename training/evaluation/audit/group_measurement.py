"""Measurements of one group of problems, by budget and by initial state."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class FoundFrom:
    """Results from another initial state than the model's own, means over problems.

    Attributes:
        start: String. Initial state. `"other"` is the equilibrium of another problem.
        alignment: Float or `None`. Alignment with the state from the model's own
            initial state. `None` if a state is non-finite.
        agreement: Float. Fraction of problems with the same prediction.
        converged: Float. Fraction of problems that meet the tolerance.
        falling: Float. Fraction of problems that do not meet the tolerance, but whose
            residual still falls.
    """

    start: str
    alignment: float | None
    agreement: float
    converged: float
    falling: float


@dataclass(frozen=True)
class FoundOfGroup:
    """Measurements of a `Group`, plain numbers and lists.

    Attributes:
        label: String. Label of the group.
        examples: Integer. Number of problems.
        floor: Integer or `None`. See `Group`.
        budgets: List of increasing integers. Numbers of evaluations.
        exact: List of floats. Fraction of problems with all positions correct, at each
            budget.
        residuals: List of floats. Median residual after each evaluation up to the
            largest budget. `None` where non-finite.
        evaluations: List of integers. Evaluations of each problem until it meets the
            tolerance, at most the largest budget.
        difficulty: List of numbers or `None`. Difficulty of each problem.
        correlation: Float or `None`. Spearman's, of evaluations and difficulty. `None`
            if one is constant.
        overthinking: Float. `exact` at the best budget minus `exact` at ten times this
            budget, among budgets whose tenfold was measured.
        converged: Float. Fraction of problems that meet the tolerance from the model's
            own initial state.
        falling: Float. Fraction of problems that do not meet the tolerance, but whose
            residual still falls at the largest budget.
        agreement: Float. Fraction of pairs of initial states with the same prediction.
        has_varied_scores: Boolean. Whether the final scores of problems differ. Also
            true if the inputs do not differ, or if scores are unknown.
        starts: List of `FoundFrom`. Results from the other initial states.
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
    converged: float
    falling: float
    agreement: float
    has_varied_scores: bool
    starts: list


class GroupMeasurement:
    """Measures a model on single `Group`s.

    Args:
        model: A `WeightTiedModel`.
        budgets: Increasing positive integers. At least one must be ten times another.
        solver: A `FixedPointIteration`. Defines damping, tolerance and residual.
        batch_size: Integer, at least 3. Maximum number of problems that are solved at
            once.
        seed: Integer. Seed of random initial states.
        starts: Tuple of the other initial states. Defaults to `STARTS`.
        max_iter: Positive integer. Evaluations from all initial states. Defaults to
            `None`, the largest budget.
    """

    def __init__(
        self, model, budgets, solver, batch_size, seed, starts=STARTS, max_iter=None
    ):
        self._model = model
        self._budgets = list(budgets)
        self._starts = starts
        self._solver = solvers.FixedPointIteration(
            max_iter=max_iter or self._budgets[-1],
            tol=solver.tol,
            stop_mode=solver.stop_mode,
            damping=solver.damping,
        )
        self._batch_size = batch_size
        self._seed = seed
        self._curve, self._comparison = (
            tf.function(function, reduce_retracing=True, autograph=False)
            for function in (self._curve_of, self._comparison_of)
        )

    def __call__(self, group):
        """Measures a group and returns its `FoundOfGroup`."""
        return self.measured(group)[0]

    def measured(self, group):
        """Returns the `FoundOfGroup`, the answers by budget of each batch, and the
        residuals `(evaluations, examples)`."""
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
        found = FoundOfGroup(
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
        return found, curves, residuals

    def _from_starts(self, batches):
        found = [self._comparison(inputs) for inputs, *_ in batches]
        compared, scores = zip(*found, strict=True)
        alignment, same, converged, falling = (
            np.concatenate(parts, axis=1)
            for parts in zip(*map(_of_each_start, compared), strict=True)
        )
        agreement = [diagnostics.answer_agreement(one.answers) for one in compared]
        return {
            "converged": float(converged[0].mean()),
            "falling": float(falling[0].mean()),
            "agreement": float(np.concatenate(agreement).mean()),
            "has_varied_scores": self._vary(batches, compared, scores),
            "starts": [
                FoundFrom(
                    start,
                    finite(alignment[index].mean()),
                    float(same[index].mean()),
                    float(converged[1 + index].mean()),
                    float(falling[1 + index].mean()),
                )
                for index, start in enumerate(self._starts)
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
            self._model, inputs, self._starts, self._solver, self._seed
        )
        return comparison, self._model.scores(comparison.value)


def _of_each_start(comparison):
    """Returns alignment and equal predictions, `(starts, batch)`, and masks of
    converged and still falling problems, `(1 + starts, batch)`."""
    answers = np.asarray(comparison.answers)
    is_same = answers[1:] == answers[0]
    is_same = is_same.reshape(*answers[1:].shape[:2], -1).all(axis=-1)
    converged = np.asarray(comparison.converged)
    falling = ~converged & still_falls(np.asarray(comparison.trace))
    return comparison.alignment, is_same, converged, falling
