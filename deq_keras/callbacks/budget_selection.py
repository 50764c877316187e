"""The choice of a budget by validation scores."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from deq_keras.core.checks import (
    check_choice,
    check_count,
    check_counts,
    check_non_negative,
)
from deq_keras.core.internals import flatten_layers
from deq_keras.layers.equilibrium.budget import replace_solver
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers
from deq_keras.layers.equilibrium.solve_scope import SolveScope

# Default budgets, relative to the present one. Most solves of the largest converge.
_MULTIPLES = (0.25, 0.5, 1, 2, 16)
# Default difference of equal scores, relative to the best.
_SMALLEST_LOSS = 0.005
# Keras and KerasHub compile these once.
_FUNCTIONS = (
    "train_function",
    "test_function",
    "predict_function",
    "generate_function",
)


class BudgetSelection(keras.callbacks.Callback):
    """Sets the budget with the best validation score at the end of training.

    Gradients of steps, such as the default, train the states of a few evaluations. Not
    every such model has its answer at the equilibrium: then its score falls if a solve
    goes on. At the end of `fit`, the callback calls `evaluate` at several budgets,
    each in a `SolveScope`, and prints one line:

    ```
    Validation r2 at 6 / 12 / 30 / 60 / 480 evaluations: 0.7461 / 0.8248 / 0.7998 /
    0.7815 / 0.7776. Selected: 12.
    ```

    It selects the smallest budget whose score is at most `min_delta` worse than the
    best. All `DEQ` layers of the model get solvers with this budget, which `.keras`
    files and exports keep and further training uses. Warns if the largest budget, where
    most solves have converged, loses more than `min_delta`: such a model is one of its
    trained number of evaluations, not of an equilibrium.

    The largest budget costs up to 16 times the evaluation that the present one costs.
    Select on data that you do not report scores on. List the callback after those that
    restore weights, such as `EarlyStopping`. Models that share layers with the trained
    one, and do not contain it or belong to it, must be compiled again.

    Args:
        validation_data: As in `fit`: a tuple `(x, y)` or `(x, y, sample_weight)`, or a
            finite data set.
        monitor: Name of the score in the logs of `evaluate`, such as `"accuracy"`.
            Defaults to `"loss"`.
        mode: `"max"` or `"min"`: which scores are better. Defaults to `None`: `"min"`
            for `"loss"`; other scores need it.
        budgets: Sequence of positive integers. Defaults to `None`: 1/4, 1/2, 1, 2 and
            16 times the budget that the layers have when training starts first.
        min_delta: Float >= 0. Difference of scores that count as equal. Defaults to
            `None`, 0.5 % of the best score.
        batch_size: Positive integer. Batch size of arrays. Defaults to `32`.
        verbose: `0`, silent, or `1`, print the line. Defaults to `1`.

    Attributes:
        scores: Dict from budgets to the scores of the last training.

    Raises:
        ValueError: If an argument is invalid. When training starts, if the model has no
            `DEQ` layer, or layers of several budgets and `budgets` is `None`. After the
            first epoch, if the logs lack `monitor`.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> model.compile(keras.optimizers.Adam(0.05), "mse")
    >>> x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    >>> selection = deq_keras.callbacks.BudgetSelection(
    ...     (x, x[:, :1]), budgets=(1, 30), verbose=0)
    >>> history = model.fit(x, x[:, :1], epochs=20, verbose=0, callbacks=[selection])
    >>> deq.solver.max_iter
    30
    """

    def __init__(
        self,
        validation_data: Any,
        monitor: str = "loss",
        mode: str | None = None,
        budgets: Sequence[int] | None = None,
        min_delta: float | None = None,
        batch_size: int = 32,
        verbose: int = 1,
    ) -> None:
        super().__init__()
        if isinstance(validation_data, tf.data.Dataset):
            is_usable = validation_data.cardinality() != tf.data.INFINITE_CARDINALITY
        else:
            is_usable = isinstance(validation_data, tuple | keras.utils.PyDataset)
        if not is_usable:
            raise ValueError(
                "`validation_data` must be a tuple (x, y) or a finite data set. "
                f"Received: validation_data={validation_data!r} (of type "
                f"{type(validation_data).__name__})."
            )
        if monitor.startswith("val_"):
            raise ValueError(
                "`monitor` must be a score of `evaluate`, whose names have no `val_`. "
                f"Expected: {monitor[4:]!r}. Received: monitor={monitor!r}."
            )
        if mode is None and monitor == "loss":
            mode = "min"
        self.validation_data = validation_data
        self.monitor = monitor
        self.mode = check_choice("mode", mode, ("min", "max"))
        self.budgets = None if budgets is None else check_counts("budgets", budgets)
        if min_delta is not None:
            min_delta = check_non_negative("min_delta", min_delta)
        self.min_delta = min_delta
        self.batch_size = check_count("batch_size", batch_size)
        self.verbose = verbose
        self.scores: dict[int, float] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        found = {layer.solver.max_iter for layer in equilibrium_layers(self.model)}
        if not found or (self.budgets is None and len(found) > 1):
            raise ValueError(
                "BudgetSelection sets one budget for all DEQ layers of a model. Pass "
                "`budgets` if they have several. Received: a model whose DEQ layers "
                f"have the budgets {sorted(found)}."
            )
        if self.budgets is None:
            (budget,) = found
            self.budgets = tuple(max(1, round(part * budget)) for part in _MULTIPLES)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.monitor not in (logs or {}):
            raise ValueError(
                "`monitor` must be a score of `evaluate`. Expected: one of "
                f"{sorted(logs or {})}. Received: monitor={self.monitor!r}."
            )

    def on_train_end(self, logs: Any = None) -> None:
        self.scores = {}
        for budget in sorted({*self.budgets}):  # type: ignore[misc]
            with SolveScope(self.model, max_iter=budget):
                logs = self._evaluate()
            if self.monitor not in logs:  # A callback of `fit` logged it.
                warnings.warn(
                    "No budget was selected, because `evaluate` does not compute "
                    f"`monitor`. Expected: one of {sorted(logs)}. Received: "
                    f"monitor={self.monitor!r}.",
                    stacklevel=2,
                )
                return
            self.scores[budget] = float(logs[self.monitor])
        budgets, values = [*self.scores], [*self.scores.values()]
        finite = {b: one for b, one in self.scores.items() if math.isfinite(one)}
        scores = " / ".join(f"{one:.4g}" for one in values)
        scores = f"{' / '.join(map(str, budgets))} evaluations: {scores}"
        if not finite:
            warnings.warn(
                "No budget was selected, because no score is finite. Received: "
                f"{self.monitor} at {scores}.",
                stacklevel=2,
            )
            return
        best = (min if self.mode == "min" else max)(finite, key=finite.__getitem__)
        delta = self.min_delta
        if delta is None:
            delta = _SMALLEST_LOSS * abs(finite[best])
        equal = [b for b, one in finite.items() if abs(one - finite[best]) <= delta]
        selected = min(equal)
        if self.verbose:
            print(f"Validation {self.monitor} at {scores}. Selected: {selected}.")
        if budgets[-1] not in equal:
            warnings.warn(
                f"The score of the model falls if its solves go on: {self.monitor} is "
                f"{values[budgets.index(best)]:.4g} at {best} evaluations and "
                f"{values[-1]:.4g} at {budgets[-1]}. It is a model of its number of "
                "evaluations, not of an equilibrium. TruncatedGradient("
                "free_fraction=0.6) or more updates let the states settle.",
                stacklevel=2,
            )
        for layer in equilibrium_layers(self.model):
            config = {**layer.solver.get_config(), "max_iter": selected}
            replace_solver(layer, layer.solver.from_config(config))
        for model in flatten_layers(self.model):
            for name in _FUNCTIONS:
                if getattr(model, name, None) is not None:
                    setattr(model, name, None)

    def _evaluate(self) -> dict[str, Any]:
        data, options = self.validation_data, {"verbose": 0, "return_dict": True}
        if isinstance(data, tuple):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
            options |= {"batch_size": self.batch_size, "sample_weight": weight}
            return self.model.evaluate(x, y, **options)
        return self.model.evaluate(data, **options)
