"""The promise of a tuned solver, and the check of this promise."""

import functools
import inspect
import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from deq_keras.core.checks import check_count, check_integer, check_open_fraction
from deq_keras.core.serialization import Config
from deq_keras.diagnostics.subject import single_layer
from deq_keras.layers.equilibrium.budget import replace_solver
from deq_keras.solvers import FixedPointSolver, deserialize, serialize


class Promise(NamedTuple):
    """A limit on the fraction of predictions that a tuned solver changes.

    Attributes:
        changed: Float in (0, 1). Largest fraction of changed predictions.
        confidence: Float in (0, 1). Confidence of the upper bound of this fraction.
            Defaults to `0.95`.
    """

    changed: float
    confidence: float = 0.95

    @property
    def num_samples(self) -> int:
        """Smallest number of samples that can prove the promise, without changes."""
        return math.ceil(math.log(1.0 - self.confidence) / math.log1p(-self.changed))

    def __str__(self) -> str:
        return (
            f"at most {100 * self.changed:.3g} % of the predictions change "
            f"({100 * self.confidence:g} % confidence)"
        )


class Outcome(NamedTuple):
    """The predictions and the cost of a solver on one half of the data.

    Attributes:
        num_changed: Integer. Number of samples with another prediction than the
            reference, or without a reference.
        num_samples: Integer. Number of samples.
        bound: Float. Upper Clopper-Pearson bound of the fraction of changes.
        evaluations: Float. Mean number of evaluations per sample.
    """

    num_changed: int
    num_samples: int
    bound: float
    evaluations: float


class Setting(NamedTuple):
    """A solver with its tolerance and budget, and its `Outcome` on the first half.

    Attributes:
        solver: `FixedPointSolver`.
        outcome: `Outcome`.
    """

    solver: FixedPointSolver
    outcome: Outcome


class Tuning(NamedTuple):
    """The result of `tune`. Printed, it is a table.

    Attributes:
        solver: The chosen `FixedPointSolver`, with its tolerance and budget.
        promise: The `Promise`.
        selection: `Outcome` of the chosen solver on the first half.
        confirmation: `Outcome` of the chosen solver on the second half.
        previous_solver: The solver of the layer.
        previous: `Outcome` of the layer's solver on the second half.
        num_without_reference: Integer. Number of samples that no tight solve brings to
            a residual of `1e-6`. Their predictions count as changed.
        settings: Tuple of `Setting`. The settings of each candidate that are cheaper
            than its other settings with as few changed predictions.
        data_hash: String. SHA-256 of the data.
        date: String. Date in UTC, YYYY-MM-DD.
    """

    solver: FixedPointSolver
    promise: Promise
    selection: Outcome
    confirmation: Outcome
    previous_solver: FixedPointSolver
    previous: Outcome
    num_without_reference: int
    settings: tuple[Setting, ...]
    data_hash: str
    date: str

    @property
    def is_confirmed(self) -> bool:
        """Whether the second half confirms the promise."""
        return self.confirmation.bound <= self.promise.changed

    @property
    def verdict(self) -> str:
        """Whether the promise holds on the second half, in one sentence."""
        if self.is_confirmed:
            return "The second half confirms the promise."
        changed = self.confirmation.num_changed / self.confirmation.num_samples
        if changed > self.promise.changed:
            return f"VIOLATED: {100 * changed:.3g} % change on the second half."
        bound = 100 * self.confirmation.bound
        return f"NOT CONFIRMED: the bound on the second half is {bound:.3g} %."

    def apply(self, model: Any) -> None:
        """Sets the solver of the `DEQ` layer of a model. Then compile the model again.

        Further training has the same gradient and penalty. Reduces a `max_iter_jitter`
        that the budget does not allow. Warns if the second half does not confirm the
        promise.

        Args:
            model: `DEQ` layer, or a model with one.
        """
        layer = single_layer(model)
        if not self.is_confirmed:
            warnings.warn(f"{self.verdict} Promise: {self.promise}.", stacklevel=2)
        replace_solver(layer, self.solver)

    def as_dict(self) -> dict[str, Any]:
        """Returns the result without `settings`, as plain data for JSON.

        An export can store it: `export_saved_model(model, path, metadata={"tuning":
        tuning.as_dict()})`. `from_dict` reads it.
        """
        fields = {name: x for name, x in self._asdict().items() if name != "settings"}
        for name, value in fields.items():
            if isinstance(value, FixedPointSolver):
                fields[name] = serialize(value)
            elif isinstance(value, Promise | Outcome):
                fields[name] = value._asdict()
        return {**fields, "is_confirmed": self.is_confirmed, "verdict": self.verdict}

    @classmethod
    def from_dict(cls, record: Config) -> "Tuning":
        """Returns the `Tuning` of a dict from `as_dict`, without `settings`.

        Args:
            record: Dict, such as the `tune.json` of `deq-keras tune`.

        Raises:
            ValueError: If `record` is not such a dict.
        """
        try:
            fields = {name: record[name] for name in cls._fields if name != "settings"}
            for name in ("solver", "previous_solver"):
                fields[name] = deserialize(fields[name])
            for name in ("selection", "confirmation", "previous"):
                fields[name] = Outcome(**fields[name])
            promise = Promise(**fields.pop("promise"))
        except (KeyError, TypeError) as error:
            raise ValueError(
                "`record` must be a dict that `Tuning.as_dict` returned. "
                f"Received: record={record!r} ({error!r})."
            ) from error
        return cls(**fields, promise=promise, settings=())

    def __repr__(self) -> str:
        rows = (
            ("chosen, first half", self.selection),
            ("chosen, second half", self.confirmation),
            ("previous, second half", self.previous),
        )
        return "\n".join(
            [
                f"promise:  {self.promise}",
                f"chosen:   {describe(self.solver)}",
                f"previous: {describe(self.previous_solver)}",
                f"{'':21}  changed  samples  bound [%]  mean evaluations",
                *(
                    f"{name:21}  {outcome.num_changed:7}  {outcome.num_samples:7}  "
                    f"{100 * outcome.bound:9.3f}  {outcome.evaluations:16.2f}"
                    for name, outcome in rows
                ),
                f"samples without a reference, which count as changed: "
                f"{self.num_without_reference}; SHA-256 "
                f"of the data: {self.data_hash[:12]}; {self.date}",
                self.verdict,
            ]
        )


def describe(solver: FixedPointSolver) -> str:
    """Returns a solver as a constructor call, with few of the default arguments.

    Args:
        solver: A `FixedPointSolver`.

    Example:

    >>> deq_keras.tuning.describe(deq_keras.solvers.Anderson(12, history=2))
    'Anderson(max_iter=12, tol=0.001, history=2)'
    """
    parameters = inspect.signature(type(solver)).parameters
    defaults = {name: one.default for name, one in parameters.items()}
    config = solver.get_config()
    names = ["max_iter", "tol"]
    # A subclass may take arguments by `**kwargs`, whose defaults are unknown.
    names += [
        name
        for name, value in config.items()
        if name not in names and value != defaults.get(name, inspect.Parameter.empty)
    ]
    arguments = ", ".join(f"{name}={config[name]!r}" for name in names)
    return f"{type(solver).__name__}({arguments})"


@functools.lru_cache(4096)
def upper_bound(num_changed: int, num_samples: int, confidence: float = 0.95) -> float:
    """Returns the upper Clopper-Pearson bound of a probability, one-sided.

    It is the probability p for which at most `num_changed` of `num_samples` independent
    events happen with probability `1 - confidence`.

    Args:
        num_changed: Integer in [0, num_samples]. Number of events.
        num_samples: Positive integer.
        confidence: Float in (0, 1). Defaults to `0.95`.

    Example:

    >>> round(deq_keras.tuning.upper_bound(0, 1497), 4)
    0.002

    Reference:

    - Clopper & Pearson (1934), "The Use of Confidence or Fiducial Limits Illustrated in
      the Case of the Binomial".
    """
    check_count("num_samples", num_samples)
    check_integer("num_changed", num_changed, 0, num_samples)
    check_open_fraction("confidence", confidence)
    if num_changed == num_samples:
        return 1.0
    k = np.arange(num_changed + 1)
    log_factorial = np.cumsum(np.log(np.maximum(np.arange(num_samples + 1), 1)))
    log_binomial = log_factorial[-1] - log_factorial[k] - log_factorial[::-1][k]
    low, high = num_changed / num_samples, 1.0
    for _ in range(60):
        p = (low + high) / 2
        terms = log_binomial + k * np.log(p) + (num_samples - k) * np.log1p(-p)
        is_likely = np.exp(terms).sum() > 1.0 - confidence
        low, high = (p, high) if is_likely else (low, p)
    return float(high)
