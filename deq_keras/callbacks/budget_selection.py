"""The choice of a budget by validation scores."""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from deq_keras.core.checks import check_choice, check_count, check_counts
from deq_keras.layers.equilibrium.cell_problem import equilibrium_layers
from deq_keras.layers.equilibrium.solve_scope import SolveScope

# Default budgets over that of the solver. Most solves of the largest one converge.
_MULTIPLES = (0.25, 0.5, 1, 2, 16)
# Difference relative to the score, below which two scores count as equal.
_SMALLEST_LOSS = 0.005
# Standard errors by which scores differ.
_NUM_ERRORS = 2.0


class BudgetSelection(keras.callbacks.Callback):
    """Sets the budget with the best validation score at the end of training.

    Gradients of steps, such as the default, train the states of a few evaluations. Not
    every such model has its answer at the equilibrium: then its score falls if a solve
    goes on. At the end of `fit`, this callback evaluates the model at several budgets
    of evaluations, each in a `SolveScope`, and prints one line:

    ```
    Validation r2 at 6 / 12 / 30 / 60 / 480 evaluations: 0.7461 / 0.8248 / 0.7998 /
    0.7815 / 0.7776. Selected: 12.
    ```

    It selects the smallest budget whose score is at most 0.5 % and one standard error
    worse than the best. Errors are of paired differences over the batches. All `DEQ`
    layers of the model get solvers with this budget, which files keep and further
    training uses. Warns if the largest budget, where most solves have converged, loses
    more than 0.5 % and two standard errors: such a model is one of its trained number
    of evaluations, not of an equilibrium.

    It costs as many evaluations of the validation data as there are budgets, of which
    the largest can take `16 * max_iter` evaluations of f. Select on data that you do
    not report scores on.

    Args:
        validation_data: Tuple `(x, y)` or `(x, y, sample_weight)` of nests of arrays,
            or a batched `tf.data.Dataset` of such tuples.
        monitor: Name of the score in the logs of `evaluate`, such as `"accuracy"`.
            Defaults to `"loss"`.
        mode: `"max"` or `"min"`: which scores are better. Defaults to `None`: `"min"`
            for `"loss"`; other scores need it.
        budgets: Sequence of positive integers. Defaults to `None`: 1/4, 1/2, 1, 2 and
            16 times the largest budget of the layers.
        batch_size: Positive integer. Batch size of arrays. Defaults to `32`.
        verbose: `0`, silent, or `1`, print the line. Defaults to `1`.

    Attributes:
        scores: Dict from budgets to the mean scores of the last training.

    Raises:
        ValueError: If an argument is invalid, and at the end of training if the model
            has no `DEQ` layer, or its logs no score `monitor`.

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

    Reference:

    - Breiman et al. (1984), "Classification and regression trees", section 3.4.3: the
      rule of one standard error.
    """

    def __init__(
        self,
        validation_data: Any,
        monitor: str = "loss",
        mode: str | None = None,
        budgets: Sequence[int] | None = None,
        batch_size: int = 32,
        verbose: int = 1,
    ) -> None:
        super().__init__()
        batch_size = check_count("batch_size", batch_size)
        if not isinstance(validation_data, tf.data.Dataset):
            if not isinstance(validation_data, tuple):
                raise ValueError(
                    "`validation_data` must be a tuple (x, y) of arrays or a batched "
                    "tf.data.Dataset. Received: validation_data of type "
                    f"{type(validation_data).__name__}."
                )
            rows = tf.data.Dataset.from_tensor_slices(validation_data)
            validation_data = rows.batch(batch_size)
        if mode is None and monitor == "loss":
            mode = "min"
        self.validation_data = validation_data
        self.monitor = monitor
        self.mode = check_choice("mode", mode, ("min", "max"))
        self.budgets = None if budgets is None else check_counts("budgets", budgets)
        self.verbose = verbose
        self.scores: dict[int, float] = {}

    def on_train_end(self, logs: Any = None) -> None:
        layers = equilibrium_layers(self.model)
        most = max((layer.solver.max_iter for layer in layers), default=1)
        budgets = self.budgets or [max(1, round(part * most)) for part in _MULTIPLES]
        budgets = sorted({*budgets})
        scores, weights = self._measure(budgets)
        means = scores @ weights
        self.scores = dict(zip(budgets, means.tolist(), strict=True))

        losses = means if self.mode == "min" else -means
        losses = np.nan_to_num(losses, nan=np.inf)  # A budget can overflow.
        losses -= losses.min()
        best = int(np.argmin(losses))
        # All budgets see the same batches, so the errors are of paired differences.
        differences = scores - scores[best]
        variances = ((differences - (means - means[best])[:, None]) ** 2) @ weights
        errors = np.nan_to_num(np.sqrt(variances / max(1, scores.shape[1] - 1)))
        smallest = _SMALLEST_LOSS * abs(means[best])
        selected = int(np.argmax(losses <= np.minimum(errors, smallest)))
        if self.verbose:
            print(
                f"Validation {self.monitor} at {_join(budgets)} evaluations: "
                f"{_join(f'{mean:.4g}' for mean in means)}. "
                f"Selected: {budgets[selected]}."
            )
        if losses[-1] > max(_NUM_ERRORS * errors[-1], smallest):
            warnings.warn(
                f"The score of the model falls if its solves go on: {self.monitor} is "
                f"{means[best]:.4g} at {budgets[best]} evaluations and "
                f"{means[-1]:.4g} at {budgets[-1]}. It is a model of its number of "
                "evaluations, not of an equilibrium. TruncatedGradient("
                "free_fraction=0.6) or more updates let the states settle.",
                stacklevel=2,
            )
        for layer in layers:
            config = {**layer.solver.get_config(), "max_iter": budgets[selected]}
            layer.solver = type(layer.solver).from_config(config)
            jitter = min(layer.max_iter_jitter, budgets[selected] - 1)
            layer.max_iter_jitter = jitter
        self.model.make_train_function(force=True)
        self.model.make_test_function(force=True)
        self.model.make_predict_function(force=True)

    def _measure(self, budgets: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores `(budgets, batches)`, and the share of samples of a batch."""
        scores, sizes = [], []
        for budget in budgets:
            row = []
            with SolveScope(self.model, max_iter=budget):
                for batch in self.validation_data:
                    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
                    found = self.model.test_on_batch(x, y, weight, return_dict=True)
                    if self.monitor not in found:
                        raise ValueError(
                            "`monitor` must be a score of `evaluate`. Expected: one of "
                            f"{sorted(found)}. Received: monitor={self.monitor!r}."
                        )
                    row.append(found[self.monitor])
                    if budget == budgets[0]:
                        sizes.append(len(tree.flatten(x)[0]))
            scores.append(row)
        return np.array(scores, "float64"), np.array(sizes) / sum(sizes)


def _join(values: Any) -> str:
    return " / ".join(map(str, values))
