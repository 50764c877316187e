"""Audit of whether a weight-tied model has an equilibrium."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from deq_keras import solvers

from ...config.keys import MAX_BUDGET
from ...errors import InputError
from ..settling import correlation
from ..verdict import criteria, verdict
from .group import check_groups
from .group_measurement import GroupMeasurement

BUDGETS = (1, 2, 5, 10, 20, 50, 100, 200)


@dataclass(frozen=True)
class Audit:
    """The result of `audit`, plain numbers, strings and lists.

    Attributes:
        kind: String. See `Verdict`.
        verdict: String. The verdict in one sentence.
        criteria: List of `Criterion`. An equilibrium passes all of them.
        tol: Float. Tolerance of the residual.
        stop_mode: String. Definition of the residual.
        damping: Float. Damping of the iteration.
        correlation: Float or `None`. Spearman's correlation of evaluations and
            difficulty, over all problems with a known difficulty. `None` if undefined.
        groups: List of `FoundOfGroup`.
    """

    kind: str
    verdict: str
    criteria: list
    tol: float
    stop_mode: str
    damping: float
    correlation: float | None
    groups: list

    @property
    def is_passed(self):
        """Returns whether the model passes all criteria."""
        return all(criterion.passed for criterion in self.criteria)

    @property
    def iteration(self):
        """Returns a description of the audited iteration."""
        return (
            f"Iteration of the cell with damping {self.damping:g}, to a residual "
            f"({self.stop_mode}) of {self.tol:g}"
        )

    def as_dict(self):
        """Returns the audit as a dict for JSON."""
        return dataclasses.asdict(self)


def audit(
    model,
    groups,
    budgets=BUDGETS,
    solver=None,
    batch_size=100,
    seed=0,
):
    """Iterates the cell of a model and checks whether it converges to an equilibrium.

    Reads predictions after each budget, and compares the results with results from
    other initial states at the largest budget.

    Args:
        model: A `deq_keras.diagnostics.WeightTiedModel`.
        groups: List of `Group` with unique labels.
        budgets: Increasing positive integers. Numbers of evaluations. At least one must
            be ten times another. Defaults to `BUDGETS`.
        solver: `FixedPointIteration`. Defines damping, tolerance and residual. Defaults
            to `None`, which uses its defaults.
        batch_size: Integer, at least 3. Maximum number of problems that are solved at
            once. Defaults to `100`.
        seed: Integer. Seed of random initial states. Defaults to `0`.

    Returns:
        An `Audit`.

    Raises:
        InputError: If the groups or the budgets are invalid, or the model and the
            problems do not fit together.
    """
    solver = solver or solvers.FixedPointIteration()
    check_groups(groups)
    _check_budgets(budgets)
    _check_iteration(solver, batch_size)
    for group in groups:
        _check_fit(model, group)
    measure = GroupMeasurement(model, budgets, solver, batch_size, seed)
    found = [measure(group) for group in groups]
    judged = criteria(found)
    kind, text = verdict(found, judged)
    return Audit(
        kind=kind,
        verdict=text,
        criteria=judged,
        tol=solver.tol,
        stop_mode=solver.stop_mode,
        damping=solver.damping,
        correlation=_correlation(found),
        groups=found,
    )


def _check_budgets(budgets):
    is_usable = (
        list(budgets) == sorted(set(budgets))
        and all(1 <= budget <= MAX_BUDGET for budget in budgets)
        and any(10 * budget in budgets for budget in budgets)
    )
    if not is_usable:
        raise InputError(
            f"`budgets` must be increasing integers from 1 to {MAX_BUDGET} of which "
            "some are ten times others, such as 10 20 100 200, to show what further "
            f"evaluations lose. Received: budgets={list(budgets)}."
        )


def _check_iteration(solver, batch_size):
    if solver.tol is None:
        raise InputError(
            "`tol` must be a number: it decides which problems have converged. "
            "Received: tol=None."
        )
    if batch_size < 3:
        raise InputError(
            "`batch_size` must be at least 3, so that no batch has a single problem. "
            f"Received: batch_size={batch_size}."
        )


def _check_fit(model, group):
    """Raises `InputError` unless a model can process two problems of a group."""
    try:
        injection = model.inject(group.inputs[:2])
        state = model.initial_state(injection)
        after = model.step(state, injection)
        scores = model.scores(after)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        reason = " ".join(str(error).split())[:400]
        raise InputError(
            "Encoder, cell, head and problems do not fit together: inputs of shape "
            f"{group.inputs.shape[1:]} of the group {group.label!r} cannot be "
            f"answered. ({reason})"
        ) from error
    shapes = [tf.nest.map_structure(_signature, nest) for nest in (state, after)]
    if shapes[0] != shapes[1]:
        raise InputError(
            "The cell must return a state like the one it takes. Received: it takes "
            f"{shapes[0]} and returns {shapes[1]}, with the batch first."
        )
    expected = group.targets.shape[1:]
    *positions, num_classes = scores.shape[1:]
    if tuple(positions) != expected:
        raise InputError(
            "The head must return scores (batch, *positions, classes), with the "
            f"positions of the targets, {expected}. Received: scores whose positions "
            f"are {tuple(positions)}."
        )
    _check_targets(group, num_classes)


def _check_targets(group, num_classes):
    """Raises `InputError` unless all weighted targets are classes of the head."""
    targets = np.asarray(group.targets)
    if group.weights is not None:
        targets = targets[np.asarray(group.weights) != 0]
    impossible = np.unique(targets[(targets < 0) | (targets >= num_classes)])
    if impossible.size:
        raise InputError(
            f"`targets` must be classes from 0 to {num_classes - 1}, of which the head "
            f"has scores. Received: {', '.join(map(str, impossible[:5]))}"
            f"{', ...' if impossible.size > 5 else ''} in the group {group.label!r}. "
            "Number the classes from 0, and give positions that do not count the "
            "weight zero."
        )


def _signature(tensor):
    return f"{tensor.dtype.name} {tuple(tensor.shape)}"


def _correlation(groups):
    known = [group for group in groups if group.difficulty is not None]
    evaluations = [number for group in known for number in group.evaluations]
    difficulty = [number for group in known for number in group.difficulty]
    return correlation(evaluations, difficulty) if known else None
