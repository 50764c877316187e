"""Measurements of a trained reasoner at one level."""

import numpy as np
import tensorflow as tf

from deq_keras import multistart, solvers

from ...data.reasoning import solved
from ...data.reasoning.dataset import in_batches
from ...evaluation.audit import Group, GroupMeasurement, of_layer
from ...evaluation.readout import split_reasoner
from ...evaluation.settling import evaluations_until, finite, floor

# The alignment score compares with the first one.
_STARTS = ("other", "normal")
_SELECTIONS = ("residual", "vote")


class LevelMeasurement(GroupMeasurement):
    """Measures a reasoner at single levels.

    Args:
        model: A `ReasonerTagger` whose solver is a `FixedPointIteration`.
        config: The `ReasoningConfig` of the model.
        budgets: Positive integers. Numbers of evaluations.
    """

    def __init__(self, model, config, budgets):
        audited = of_layer(split_reasoner(model))
        super().__init__(
            audited.model,
            sorted(set(budgets)),
            audited.solver,
            config.data.evaluation_batch_size,
            config.seed,
            _STARTS,
            config.evaluation.max_iter,
        )
        self._reasoner = model
        self._layer = model.backbone.deq
        self._restarts = config.evaluation.restarts
        # Traced once for all batch sizes and all levels.
        problems = tf.TensorSpec(model.input.shape, model.input.dtype)
        self._selected = tf.function(self._selected_of, [problems], autograph=False)

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
        group = level_group(level, examples, self._layer.cell)
        found, curves, residuals = self.measured(group)
        batches = in_batches(examples, self._batch_size)
        accuracy = _of_positions(curves, batches)
        evaluations, has_converged = evaluations_until(self._solver.tol, residuals)
        rows = [
            {
                "budget": budget,
                "exact_match": exact,
                "accuracy": of_positions,
                "residual": finite(np.median(residuals[budget - 1])),
                "evaluations": float(np.minimum(evaluations, budget).mean()),
                "converged": float(np.mean(has_converged & (evaluations <= budget))),
            }
            for budget, exact, of_positions in zip(
                found.budgets, found.exact, accuracy, strict=True
            )
        ]
        return {
            "level": level,
            "examples": found.examples,
            "floor": found.floor,
            "budgets": rows,
            "evaluations": found.evaluations,
            "difficulty": found.difficulty,
            "correlation": found.correlation,
            "overthinking": found.overthinking,
            "alignment": found.starts[0].alignment,
            "agreement": found.agreement,
            "restarts": self._of_restarts(batches),
        }

    def _of_restarts(self, batches):
        if self._restarts is None:
            return None
        found = []
        for batch in batches:
            answers = self._selected(batch.inputs).numpy()
            found.append([solved(chosen, batch) for chosen in answers])
        shares = np.concatenate(found, axis=1).mean(axis=1).tolist()
        return dict(zip(("first", *_SELECTIONS), shares, strict=True))

    def _selected_of(self, inputs):
        """Returns the predictions of the first initial state and of each selection,
        `(1 + selections, batch, *positions)`."""
        encoded = self._reasoner.backbone.encode(inputs)
        solutions = [
            self._layer.solve(encoded),
            *(
                multistart.solve(
                    self._layer,
                    encoded,
                    self._restarts,
                    select,
                    self._answer,
                    solvers.SolveRequest(seed=self._seed),
                )
                for select in _SELECTIONS
            ),
        ]
        return tf.stack([self._answer(solution.value) for solution in solutions])

    def _answer(self, state):
        return tf.argmax(self._reasoner.head(state), axis=-1, output_type=tf.int32)


def level_group(level, examples, cell):
    """Returns the `Group` of the `Examples` of a level, for a model with a cell."""
    inputs, targets, weights, difficulty, distance = examples
    least = floor(distance, getattr(cell, "reach", None))
    return Group(f"level {level}", inputs, targets, weights, difficulty, least)


def _of_positions(curves, batches):
    """Returns the list of fractions of correct weighted positions at each budget."""
    hits = []
    for curve, batch in zip(curves, batches, strict=True):
        is_right = (curve.answers.numpy() == batch.targets) * batch.weights
        hits.append(is_right.reshape(len(is_right), -1).sum(axis=1))
    num_positions = sum(batch.weights.sum() for batch in batches)
    return (np.sum(hits, axis=0) / num_positions).tolist()
