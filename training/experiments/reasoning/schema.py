"""The config of a reasoning experiment, with all defaults."""

from typing import Literal

from ...config import keys
from ...config.fields import (
    Components,
    Config,
    EvaluationConfig,
    SegmentsConfig,
    VariantsConfig,
)

# Each task checks its own range; see `ReasoningTask.levels`.
_Level = keys.integer(ge=0, le=2**14)


class LevelConfig(Config):
    """Held-out examples of one level of the task.

    Args:
        level: Integer. Size or difficulty, as the task defines it.
        examples: Integer, at least 2. Number of examples.
    """

    level: _Level
    examples: keys.integer(ge=2, le=10_000_000) = 128


class DataConfig(Config):
    """The problems, which are all generated.

    Args:
        task: Name of the task, alone or with its arguments: `{class_name: words,
            letters: generators}`.
        levels: List of integers. Levels of training. Each batch has one level, drawn
            uniformly from this list, which may contain duplicates.
        validation: List of levels for validation after each epoch. The score is
            computed over all levels together.
        test: List of levels for the final evaluation, from the easiest to the hardest.
            Tables that compare experiments show the last level.
        updates_per_epoch: Positive integer. Training steps per epoch, each with a new
            batch.
        batch_size: Positive integer. Problems per training step. With segments, the
            new problems per step.
        evaluation_batch_size: Integer, at least 3. Maximum number of problems that are
            solved at once.
        seed: Non-negative integer. Seed of the validation and test examples. Training
            examples follow the seed of the run.
    """

    levels: keys.Some[_Level]
    validation: keys.Some[LevelConfig]
    test: keys.Some[LevelConfig]
    task: keys.Component
    updates_per_epoch: keys.Count = 250
    batch_size: keys.Batch = 32
    evaluation_batch_size: keys.integer(ge=3, le=2**20) = 64
    seed: keys.Seed = 0


class ModelConfig(Components):
    """A `ReasonerTagger`.

    Args:
        cell: Name of a cell in `deq_keras.layers`, with its arguments: `{class_name:
            recall_cell, filters: 32}`.
        embedding_units: Positive integer or null. Features of the token embedding,
            equal to the `units` of a cell that has this argument. Null for tasks whose
            inputs have channels.
        solver: Solver of the layer.
    """

    solver: keys.Component = "fixed_point_iteration"
    gradient: keys.Component = "truncated"
    initial_state: keys.Component = "mixed"
    cell: keys.Component
    embedding_units: keys.Width | None = None


class PictureConfig(Config):
    """An animation of the solution of a maze or a Sudoku.

    Args:
        level: Integer. Level of the held-out problem.
        evaluations: Positive integer, at most 500. Number of evaluations to show. The
            animation has at most about 60 frames.
    """

    level: _Level
    evaluations: keys.integer(le=500) = 64


class ReasoningEvaluationConfig(EvaluationConfig):
    """The measurements of a trained reasoner; see `EvaluationConfig`.

    `num_samples` are samples of the first test level, for the diagnosis; `max_iter` is
    also the budget of the solves from other initial states.

    Args:
        budgets: List of positive integers. Numbers of function evaluations (NFE) at
            which every test level is measured. Overthinking is measured for each budget
            whose tenfold is listed too.
        restarts: Integer, at least 2, or null. Solves per problem, from which one
            result is selected. Null skips this measurement.
        picture: Animation of one problem, or null.
    """

    budgets: keys.Distinct[keys.Budget] = [4, 8, 16, 32, 64, 128, 160, 320, 640]
    num_samples: keys.Batch = 8
    max_iter: keys.Budget = 160
    restarts: keys.integer(ge=2, le=256) | None = None
    picture: PictureConfig | None = None


class ReasoningConfig(VariantsConfig):
    """A reasoner; see `VariantsConfig`.

    Args:
        label_smoothing: Float in [0, 0.99]. Fraction of a target that is spread over
            all classes.
        segments: Training in segments, with problems of one level. Null trains with
            complete solves in each step.
    """

    experiment: Literal["reasoning"]
    model: ModelConfig
    data: DataConfig
    label_smoothing: keys.Rate = 0.0
    segments: SegmentsConfig | None = None
    evaluation: ReasoningEvaluationConfig = ReasoningEvaluationConfig()
