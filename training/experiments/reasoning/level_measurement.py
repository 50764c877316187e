"""Measurements of a trained reasoner at one level."""

import numpy as np
import tensorflow as tf

from deq_keras import diagnostics, multistart, solvers

from ...data.reasoning import solved
from ...data.reasoning.dataset import in_batches
from ...evaluation.settling import (
    correlation,
    evaluations_until,
    finite,
    floor,
    overthinking,
)

# The alignment score compares with the first one.
_STARTS = ("other", "normal")
_SELECTIONS = ("residual", "vote")


class LevelMeasurement:
    """Measures a reasoner at single levels.

    Args:
        model: A `ReasonerTagger` whose solver is a `FixedPointIteration`.
        config: The `ReasoningConfig` of the model.
        budgets: Positive integers. Numbers of evaluations.
    """

    def __init__(self, model, config, budgets):
        self._model = model
        self._layer = model.backbone.deq
        self._config = config.evaluation
        self._batch_size = config.data.evaluation_batch_size
        self._seed = config.seed
        self._budgets = sorted(set(budgets))
        # Each function is traced once for all batch sizes and all levels.
        problems = tf.TensorSpec(model.input.shape, model.input.dtype)
        self._curve, self._comparison, self._selected = (
            tf.function(function, [problems])
            for function in (self._curve_of, self._comparison_of, self._selected_of)
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
                `evaluations`, the mean number until the tolerance was met, at most the
                budget; `converged`, the fraction of examples that met the tolerance.
            `evaluations`: Evaluations of each example until it met the tolerance, at
                most the largest budget.
            `difficulty`: Difficulty of each example, as the task defines it.
            `correlation`: Spearman's, of `evaluations` and `difficulty`.
            `overthinking`: `exact_match` at the best budget minus `exact_match` at ten
                times this budget.
            `alignment`: Mean `alignment_score` over initial states.
            `agreement`: Mean `answer_agreement` over initial states.
            `restarts`: Fractions of exact results with the solver's own budget and
                tolerance: of the `first` initial state, and of the results selected by
                `residual` and by `vote`.
        """
        batches = in_batches(examples, self._batch_size)
        residuals, exact, accuracy = self._answered(batches)
        tol = self._layer.solver.tol
        evaluations, has_converged = evaluations_until(tol, residuals)
        rows = [
            {
                "budget": budget,
                "exact_match": share,
                "accuracy": of_positions,
                "residual": finite(np.median(residuals[budget - 1])),
                "evaluations": float(np.minimum(evaluations, budget).mean()),
                "converged": float(np.mean(has_converged & (evaluations <= budget))),
            }
            for budget, share, of_positions in zip(
                self._budgets, exact, accuracy, strict=True
            )
        ]
        return {
            "level": level,
            "examples": len(examples.inputs),
            "floor": self._floor(examples.distance),
            "budgets": rows,
            "evaluations": evaluations.tolist(),
            "difficulty": examples.difficulty.tolist(),
            "correlation": correlation(evaluations, examples.difficulty),
            "overthinking": overthinking(self._budgets, exact),
            **self._agreement(batches),
            "restarts": self._restarts(batches),
        }

    def _floor(self, distance):
        return floor(distance, getattr(self._layer.cell, "reach", None))

    def _answered(self, batches):
        """Returns residuals `(evaluations, examples)`, and two lists with the fractions
        of correct examples and of correct positions at each budget."""
        residuals, exact, hits = [], [], []
        for batch in batches:
            curve = self._curve(batch.inputs)
            residuals.append(curve.residual)
            exact.append(curve.right(batch.targets, batch.weights))
            is_right = (curve.answers.numpy() == batch.targets) * batch.weights
            hits.append(is_right.sum(axis=tuple(range(1, is_right.ndim))))
        num_positions = sum(batch.weights.sum() for batch in batches)
        return (
            np.concatenate(residuals, axis=1),
            np.concatenate(exact, axis=1).mean(axis=1).tolist(),
            (np.sum(hits, axis=0) / num_positions).tolist(),
        )

    def _agreement(self, batches):
        compared = [self._comparison(batch.inputs) for batch in batches]
        alignment = [comparison.alignment[0] for comparison in compared]
        agreement = [
            diagnostics.answer_agreement(comparison.answers) for comparison in compared
        ]
        return {
            "alignment": finite(np.concatenate(alignment).mean()),
            "agreement": float(np.concatenate(agreement).mean()),
        }

    def _restarts(self, batches):
        if self._config.restarts is None:
            return None
        found = []
        for batch in batches:
            answers = self._selected(batch.inputs).numpy()
            found.append([solved(chosen, batch) for chosen in answers])
        shares = np.concatenate(found, axis=1).mean(axis=1).tolist()
        return dict(zip(("first", *_SELECTIONS), shares, strict=True))

    def _curve_of(self, inputs):
        solver = self._layer.solver
        return diagnostics.answers_by_budget(
            *weight_tied(self._model, inputs),
            self._budgets,
            solver.damping,
            solver.stop_mode,
        )

    def _comparison_of(self, inputs):
        config = {**self._layer.solver.get_config(), "compact": False}
        solver = solvers.FixedPointIteration(
            **{**config, "max_iter": self._config.max_iter}
        )
        parts = weight_tied(self._model, inputs)
        return diagnostics.compare_initial_states(*parts, _STARTS, solver, self._seed)

    def _selected_of(self, inputs):
        """Returns the predictions of the first initial state and of each selection,
        `(1 + selections, batch, *positions)`."""
        encoded = self._model.backbone.encode(inputs)
        solutions = [
            self._layer.solve(encoded),
            *(
                multistart.solve(
                    self._layer,
                    encoded,
                    self._config.restarts,
                    select,
                    self._answer,
                    solvers.SolveRequest(seed=self._seed),
                )
                for select in _SELECTIONS
            ),
        ]
        return tf.stack([self._answer(solution.value) for solution in solutions])

    def _answer(self, state):
        return tf.argmax(self._model.head(state), axis=-1, output_type=tf.int32)


def weight_tied(model, inputs):
    """Returns a `ReasonerTagger` as a `WeightTiedModel`, and its encoded inputs.

    Its initial state is the initial state of the layer for these inputs.
    """
    layer, encoded = model.backbone.deq, model.backbone.encode(inputs)
    state = layer.request(layer.problem(encoded)).initial_state
    parts = diagnostics.WeightTiedModel(
        layer.cell, head=model.head, initial_state=lambda injection: state
    )
    return parts, encoded
