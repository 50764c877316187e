"""Verdict of an audit: the kind of equilibrium. Does not import TensorFlow."""

import math
from dataclasses import dataclass
from typing import NamedTuple

# These limits, which we chose, hold for every group of an equilibrium.

# Minimum mean alignment of the result from every other initial state with the result
# from the model's own.
ALIGNMENT = 0.99
# Minimum fraction of pairs of initial states with the same prediction.
AGREEMENT = 0.99
# Minimum fraction of problems that meet the tolerance, from every initial state.
CONVERGED = 0.99
# Maximum fraction of exact predictions that may be lost from the best budget to ten
# times this budget.
LOST = 0.01


class Verdict(NamedTuple):
    """The conclusion from the measurements of all groups.

    Attributes:
        kind: String. `"unique"`: the same equilibrium from every initial state.
            `"not_unique"`: an equilibrium from the model's own initial state, but not
            the same one from another. `"slow"`: residuals still fall at the largest
            budget. `"none"`: residuals neither meet the tolerance nor fall.
        text: String. One sentence with the decisive numbers.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Criterion:
    """One condition of an equilibrium, with its worst value.

    Attributes:
        name: String. `"alignment"`, `"agreement"`, `"converged"` or `"lost"`.
        value: Float or `None`. Worst value, `None` if unknown.
        threshold: Float. Bound of the value.
        passed: Boolean. Whether the value meets the threshold.
        where: String. Group and initial state of the worst value.
    """

    name: str
    value: float | None
    threshold: float
    passed: bool
    where: str

    def __str__(self):
        value = "not known" if self.value is None else f"{self.value:.4f}"
        side = "at most" if self.name == "lost" else "at least"
        return f"{self.name} {value} ({side} {self.threshold:g}; {self.where})"


def criteria(groups):
    """Returns the list of `Criterion` of a list of `FoundOfGroup`."""
    alignment, agreement, converged = [], [], []
    for group in groups:
        agreement.append((group.agreement, group.label))
        converged.append((group.converged, group.label))
        for found in group.starts:
            where = f"{group.label}, from {found.start}"
            alignment.append((found.alignment, where))
            converged.append((found.converged, where))
    return [
        _at_least("alignment", alignment, ALIGNMENT),
        _at_least("agreement", agreement, AGREEMENT),
        _at_least("converged", converged, CONVERGED),
        _lost(groups),
    ]


def verdict(groups, judged):
    """Returns the `Verdict`.

    Args:
        groups: List of `FoundOfGroup`.
        judged: List. Result of `criteria` for the groups.
    """
    kind, text = _kind(groups, judged)
    missed = [str(one) for one in judged if one.name == "lost" and not one.passed]
    if missed:
        text += f"; going on loses answers: {missed[0]}"
    constant = [group.label for group in groups if not group.has_varied_scores]
    if constant:
        text += (
            f"; the scores of {', '.join(constant)} are constant: they do not depend "
            "on the inputs, as where all weights are zero"
        )
    return Verdict(kind, text)


def _kind(groups, judged):
    """Returns kind and text of the `Verdict` on the states, without lost accuracy."""
    own = [(group, "the model's own start", group) for group in groups]
    others = [(group, one.start, one) for group in groups for one in group.starts]
    for solves in (own, others):
        short = [solve for solve in solves if solve[2].converged < CONVERGED]
        if not short:
            continue
        # Reports the solves that are furthest from convergence at any budget.
        group, start, found = min(short, key=lambda solve: _in_the_end(solve[2]))
        text = _unconverged(group, start, found)
        if _in_the_end(found) >= CONVERGED:
            return "slow", f"slow convergence: {text}; use larger budgets"
        if solves is own:
            return "none", f"no equilibrium: {text}"
        return "not_unique", f"an equilibrium, not unique: {text}"
    same = [one for one in judged if one.name in ("alignment", "agreement")]
    missed = [one for one in same if not one.passed]
    kind, word = ("not_unique", "not unique") if missed else ("unique", "unique")
    return kind, f"an equilibrium, {word}: {', '.join(map(str, missed or same))}"


def _in_the_end(found):
    """Returns the fraction of problems that have converged or still converge."""
    return found.converged + found.falling


def _unconverged(group, start, found):
    text = (
        f"after {group.budgets[-1]} evaluations of {group.label} from {start}, "
        f"{found.converged:.1%} of the problems converge and the residuals of "
        f"{found.falling:.1%} still fall"
    )
    if found is not group:
        return text
    residual = group.residuals[-1]
    median = "not finite" if residual is None else f"{residual:.2g}"
    return f"{text} (median residual: {median})"


def _at_least(name, found, threshold):
    value, where = min(found, key=lambda one: -math.inf if one[0] is None else one[0])
    return Criterion(
        name, value, threshold, value is not None and value >= threshold, where
    )


def _lost(groups):
    lost = [_lost_in(group) for group in groups]
    value, where = max(lost, key=lambda one: math.inf if one[0] is None else one[0])
    return Criterion("lost", value, LOST, value is not None and value <= LOST, where)


def _lost_in(group):
    """Returns the loss of a group, or `None` without ten times its best budget."""
    exact = dict(zip(group.budgets, group.exact, strict=True))
    followed = [share for budget, share in exact.items() if 10 * budget in exact]
    best = max(exact, key=exact.get)
    if max(followed) < exact[best] - LOST:
        reason = "ten times this budget was not measured"
        return None, f"{group.label}, best at NFE {best}: {reason}"
    return group.overthinking, group.label
