"""Measurements of a trained reasoner at one level."""

import math

import numpy as np
import tensorflow as tf

from deq_keras import diagnostics, multistart, solvers

from ...data.reasoning import is_solved, least_evaluations
from ...data.reasoning.dataset import in_batches
from ...evaluation.budgets import measure_at_budgets, predictor

# The alignment score compares with the first one.
_OTHERS = ("other", "normal")
_SELECTIONS = ("residual", "vote")


class LevelMeasurement:
    """Measures a reasoner at single levels.

    Args:
        model: A `ReasonerTagger`.
        config: The `ReasoningConfig` of the model.
        budgets: Positive integers. Numbers of evaluations.
    """

    def __init__(self, model, config, budgets):
        self._model = model
        self._budgets = sorted(set(budgets))
        self._config = config
        self._restarts = config.evaluation.restarts
        self._predict = predictor(model)
        # Traced once for all batch sizes and all levels.
        problems = [tf.TensorSpec(model.input.shape, model.input.dtype)]
        self._compare, self._selected = (
            tf.function(function, problems, autograph=False)
            for function in (self._compare_starts, self._select_predictions)
        )

    def __call__(self, level, examples):
        """Measures one level.

        Args:
            level: Integer.
            examples: `Examples` of the level, at least two.

        Returns:
            A dict of plain numbers and lists. Undefined numbers are `None`.
            `level`, and the number of `examples`.
            `floor`: Minimum number of evaluations in which information can travel as
                far as every example requires.
            `budgets`: List with one dict per budget: `budget`; `exact_match`, the
                fraction of examples with all positions correct; `accuracy`, the
                fraction of correct weighted positions; `residual`, the median;
                `evaluations`, the mean number; `converged`, the fraction of examples
                that met the tolerance.
            `evaluations`: Evaluations of each example at the largest budget.
            `difficulty`: Difficulty of each example, as the task defines it.
            `correlation`: Spearman's, of `evaluations` and `difficulty`.
            `overthinking`: `exact_match` at the best budget minus `exact_match` at ten
                times this budget.
            `alignment`: Mean `alignment_score` with the equilibria of other examples.
            `agreement`: Mean `prediction_agreement` over initial states.
            `restarts`: Fractions of exact results with the solver's own budget and
                tolerance: of the `first` initial state, and of the results selected by
                `residual` and by `vote`.
        """
        batches = in_batches(examples, self._config.data.evaluation_batch_size)
        rows = measure_at_budgets(
            self._predict,
            [(batch.inputs, batch) for batch in batches],
            exact_match,
            self._budgets,
            _summary,
        )
        evaluations = [row.pop("evaluations_of_each") for row in rows][-1]
        reach = getattr(self._model.backbone.deq.cell, "reach", None)
        compared = [self._compare(batch.inputs) for batch in batches]
        alignment, agreement = (
            np.concatenate(parts) for parts in zip(*compared, strict=True)
        )
        difficulty = np.asarray(examples.difficulty).tolist()
        return {
            "level": level,
            "examples": len(examples.inputs),
            "floor": reach and int(np.max(least_evaluations(examples.distance, reach))),
            "budgets": rows,
            "evaluations": evaluations,
            "difficulty": difficulty,
            "correlation": correlation(evaluations, difficulty),
            "overthinking": overthinking(
                self._budgets, [row["exact_match"] for row in rows]
            ),
            "alignment": _finite(alignment.mean()),
            "agreement": float(agreement.mean()),
            "restarts": self._of_restarts(batches),
        }

    def _compare_starts(self, inputs):
        """Returns the alignment with the equilibria of other examples and the agreement
        of the predictions, `(batch,)` each."""
        found = diagnostics.compare_initial_states(
            self._model,
            inputs,
            _OTHERS,
            self._config.evaluation.max_iter,
            self._config.seed,
        )
        predictions = tf.argmax(found.outputs, axis=-1)
        return found.alignment[0], diagnostics.prediction_agreement(predictions)

    def _of_restarts(self, batches):
        if self._restarts is None:
            return None
        found = []
        for batch in batches:
            selected = self._selected(batch.inputs).numpy()
            found.append([is_solved(predictions, batch) for predictions in selected])
        shares = np.concatenate(found, axis=1).mean(axis=1).tolist()
        return dict(zip(("first", *_SELECTIONS), shares, strict=True))

    def _select_predictions(self, inputs):
        """Returns the predictions of the first initial state and of each selection,
        `(1 + selections, batch, *positions)`."""
        layer = self._model.backbone.deq
        encoded = self._model.backbone.encode(inputs)
        solutions = [
            layer.solve(encoded),
            *(
                multistart.solve(
                    layer,
                    encoded,
                    self._restarts,
                    select,
                    self._predictions,
                    solvers.SolveRequest(seed=self._config.seed),
                )
                for select in _SELECTIONS
            ),
        ]
        return tf.stack([self._predictions(solution.value) for solution in solutions])

    def _predictions(self, state):
        return tf.argmax(self._model.head(state), axis=-1, output_type=tf.int32)


def exact_match(logits, batch):
    """Returns whether each problem in `Examples` is solved, and the numbers of correct
    and of all weighted positions."""
    predictions, weights = np.argmax(logits, axis=-1), np.asarray(batch.weights)
    axes = tuple(range(1, weights.ndim))
    return {
        "exact_match": is_solved(predictions, batch),
        "correct": np.sum((predictions == batch.targets) * weights, axis=axes),
        "positions": np.sum(weights, axis=axes),
    }


def correlation(first, second):
    """Returns Spearman's rank correlation, or `None` if an argument is constant."""
    return _finite(diagnostics.rank_correlation(first, second))


def overthinking(budgets, accuracy):
    """Returns the accuracy lost from the best budget to ten times this budget, or
    `None` if no budget is ten times another."""
    if not any(10 * budget in budgets for budget in budgets):
        return None
    return diagnostics.overthinking(budgets, accuracy)


def _summary(batches):
    """Returns the numbers of a row, and the evaluations of each example."""
    values = {
        name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]
    }
    return {
        "exact_match": float(values["exact_match"].mean()),
        "accuracy": float(values["correct"].sum() / values["positions"].sum()),
        "residual": _finite(np.median(values["residual"])),
        "evaluations_of_each": values["evaluations"].tolist(),
    }


def _finite(number):
    """Returns a finite number as a float. Returns `None` otherwise, for JSON."""
    return float(number) if math.isfinite(number) else None
