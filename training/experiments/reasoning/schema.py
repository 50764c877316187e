"""The config of a reasoning experiment, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, BUDGET, COUNT, DRAWN, SEED, WIDTH
from ...config.component_fields import REASONING_CELL, component, components
from ...config.fields import EvaluationConfig, SegmentsConfig, VariantsConfig
from ...data.reasoning import TASKS

# Each task checks its own range; see `ReasoningTask.levels`.
_LEVEL = {"minimum": 0, "maximum": 2**14}

_TASK = component(tuple(TASKS), plug_ins=False)


@dataclass(frozen=True)
class LevelConfig:
    """Held-out examples of one level of the task.

    Args:
        level: Integer. Size or difficulty, as the task defines it.
        examples: Integer, at least 2. Number of examples.
    """

    level: int = field(metadata=_LEVEL)
    examples: int = field(default=128, metadata={**DRAWN, "minimum": 2})


_LEVELS = {"non_empty": True, "max_items": 32}


@dataclass(frozen=True)
class DataConfig:
    """The problems, which are all generated.

    Args:
        task: Name in `TASKS`, alone or with its arguments: `{class_name: words,
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

    levels: list[int] = field(metadata={"non_empty": True, **_LEVEL})
    validation: list[LevelConfig] = field(metadata=_LEVELS)
    test: list[LevelConfig] = field(metadata=_LEVELS)
    task: Any = field(metadata=_TASK)
    updates_per_epoch: int = field(default=250, metadata=COUNT)
    batch_size: int = field(default=32, metadata=BATCH)
    evaluation_batch_size: int = field(default=64, metadata={**BATCH, "minimum": 3})
    seed: int = field(default=0, metadata=SEED)


@dataclass(frozen=True)
class ModelConfig(
    components(
        solver="fixed_point_iteration", gradient="truncated", initial_state="mixed"
    )
):
    """A `ReasonerTagger`.

    Args:
        cell: Name of a cell in `deq_keras.layers`, with its arguments: `{class_name:
            recall_cell, filters: 32}`.
        embedding_units: Positive integer or null. Features of the token embedding,
            equal to the `units` of a cell that has this argument. Null for tasks whose
            inputs have channels.
        solver: Solver of the layer. The last phase requires a fixed-point iteration,
            whose single solve yields the results at all budgets.
    """

    cell: Any = field(metadata=REASONING_CELL)
    embedding_units: int | None = field(default=None, metadata=WIDTH)


@dataclass(frozen=True)
class PictureConfig:
    """An animation of the solution of a maze or a Sudoku.

    Args:
        level: Integer. Level of the held-out problem.
        evaluations: Positive integer, at most 500. Number of evaluations. The animation
            has one frame before each evaluation and one after the last.
    """

    level: int = field(metadata=_LEVEL)
    evaluations: int = field(default=64, metadata={**BUDGET, "maximum": 500})


@dataclass(frozen=True)
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

    budgets: list[int] = field(
        default_factory=list, metadata={"non_empty": True, "distinct": True, **BUDGET}
    )
    restarts: int | None = field(default=None, metadata={"minimum": 2, "maximum": 256})
    picture: PictureConfig | None = None


@dataclass(frozen=True)
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
    data: DataConfig = field(kw_only=True)
    label_smoothing: float = field(
        default=0.0, metadata={"minimum": 0.0, "maximum": 0.99}
    )
    segments: SegmentsConfig | None = None
    evaluation: ReasoningEvaluationConfig = ReasoningEvaluationConfig(
        [4, 8, 16, 32, 64, 128, 160, 320, 640], num_samples=8, max_iter=160
    )
