"""Whether what was measured is an equilibrium, and which kind. Needs no TensorFlow."""

import math
from typing import NamedTuple

from ..errors import InputError


class Thresholds(NamedTuple):
    """What an equilibrium has to reach in every group, shares from 0 to 1.

    Attributes:
        alignment: float. The least mean alignment with what is found from the model's
            own start, of every other start. Defaults to `0.99`.
        agreement: float. The least share of pairs of starts with the same answer.
            Defaults to `0.99`.
        settled: Float. Least fraction of problems that meet the tolerance, from every
            start. Defaults to `0.99`.
        lost: float. The most exact answers that may be lost from the best budget to ten
            times it. Defaults to `0.01`.
    """

    alignment: float = 0.99
    agreement: float = 0.99
    settled: float = 0.99
    lost: float = 0.01


class Verdict(NamedTuple):
    """What the measurements of all groups show.

    Attributes:
        kind: str. `"unique"`: an equilibrium, the same from every start.
            `"not_unique"`: an equilibrium from the model's own start, but a different
            one or none from another. `"slow"`: the budget ends while residuals still
            fall. `"none"`: residuals neither meet the tolerance nor fall.
        text: str. One sentence with the numbers that decide.
    """

    kind: str
    text: str


class Criterion(NamedTuple):
    """One condition of an equilibrium, where it is nearest to being missed.

    Attributes:
        name: str. A field of `Thresholds`.
        value: float, the worst; `None` if it is not known.
        threshold: float.
        passed: bool.
        where: str. The group, and the start.
    """

    name: str
    value: float | None
    threshold: float
    passed: bool
    where: str

    @property
    def bound(self):
        """What the value must be, such as `"at least 0.99"`."""
        side = "at most" if self.name == "lost" else "at least"
        return f"{side} {self.threshold:g}"

    def __str__(self):
        value = "not known" if self.value is None else f"{self.value:.4f}"
        return f"{self.name} {value} ({self.bound}; {self.where})"


def check_thresholds(thresholds):
    """Raises `InputError` unless all `Thresholds` are shares."""
    for name, value in thresholds._asdict().items():
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InputError(
                f"The threshold `{name}` must be a number from 0 to 1. Received: "
                f"{name}={value!r}."
            )


def criteria(groups, thresholds):
    """Returns the list of `Criterion`.

    Args:
        groups: list of `FoundOfGroup`.
        thresholds: the `Thresholds`.
    """
    alignment, agreement, settled = [], [], []
    for group in groups:
        agreement.append((group.agreement, group.label))
        settled.append((group.settled, group.label))
        for found in group.starts:
            where = f"{group.label}, from {found.start}"
            alignment.append((found.alignment, where))
            settled.append((found.settled, where))
    return [
        _at_least("alignment", alignment, thresholds.alignment),
        _at_least("agreement", agreement, thresholds.agreement),
        _at_least("settled", settled, thresholds.settled),
        _lost(groups, thresholds.lost),
    ]


def verdict(groups, judged, thresholds):
    """Returns the `Verdict`.

    Args:
        groups: list of `FoundOfGroup`.
        judged: what `criteria` returned for them.
        thresholds: the `Thresholds`.
    """
    kind, text = _kind(groups, judged, thresholds)
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


def _kind(groups, judged, thresholds):
    """Returns kind and text of the `Verdict` on states, whatever their answers."""
    own = [(group, "the model's own start", group) for group in groups]
    others = [(group, one.start, one) for group in groups for one in group.starts]
    for solves in (own, others):
        short = [solve for solve in solves if solve[2].settled < thresholds.settled]
        if not short:
            continue
        # The one that is furthest from settling with any budget.
        group, start, found = min(short, key=lambda solve: _in_the_end(solve[2]))
        text = _unsettled(group, start, found)
        if _in_the_end(found) >= thresholds.settled:
            return "slow", f"slow convergence: {text}; use larger budgets"
        if solves is own:
            return "none", f"no equilibrium: {text}"
        return "not_unique", f"an equilibrium, not unique: {text}"
    same = [one for one in judged if one.name in ("alignment", "agreement")]
    missed = [one for one in same if not one.passed]
    kind, word = ("not_unique", "not unique") if missed else ("unique", "unique")
    return kind, f"an equilibrium, {word}: {', '.join(map(str, missed or same))}"


def _in_the_end(found):
    """Returns the fraction that has converged or still converges."""
    return found.settled + found.falling


def _unsettled(group, start, found):
    text = (
        f"after {group.budgets[-1]} evaluations of {group.label} from {start}, "
        f"{found.settled:.1%} of the problems are settled and the residuals of "
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


def _lost(groups, threshold):
    lost = [_lost_in(group, threshold) for group in groups]
    value, where = max(lost, key=lambda one: math.inf if one[0] is None else one[0])
    return Criterion(
        "lost", value, threshold, value is not None and value <= threshold, where
    )


def _lost_in(group, threshold):
    """Returns the loss of a group, `None` without ten times its best budget."""
    exact = dict(zip(group.budgets, group.exact, strict=True))
    followed = [share for budget, share in exact.items() if 10 * budget in exact]
    best = max(exact, key=exact.get)
    if max(followed) < exact[best] - threshold:
        return None, f"{group.label}, best at NFE {best}: ten times it is no budget"
    return group.overthinking, group.label
