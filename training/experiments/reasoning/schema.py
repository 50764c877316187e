"""What the config of an experiment of reasoning may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, BUDGET, COUNT, DRAWN, SEED, WIDTH
from ...config.component_fields import (
    gradient_field,
    initial_state_field,
    reasoning_cell_field,
    regularizer_field,
    solver_field,
)
from ...config.fields import EvaluationConfig, SegmentsConfig, VariantsConfig
from ...data.reasoning import TASKS

# A task knows its own; see `ReasoningTask.levels`.
_LEVEL = {"minimum": 0, "maximum": 2**14}

_TASK = {
    "component": tuple(TASKS),
    "nullable": False,
    "arguments": {"num_puzzles": DRAWN, "seed": SEED},
}


@dataclass(frozen=True)
class LevelConfig:
    """Examples of one level of the task, none of which training sees.

    Args:
        level: size or difficulty, as the task counts it.
        examples: how many are drawn.
    """

    level: int = field(metadata=_LEVEL)
    examples: int = field(default=128, metadata={**DRAWN, "minimum": 2})


_LEVELS = {"non_empty": True, "max_items": 32}


@dataclass(frozen=True)
class DataConfig:
    """The problems, all made up.

    Args:
        task: a name of `TASKS`, alone or with its arguments: `{class_name: sudoku_6x6,
            num_puzzles: 2000}`.
        levels: of training. Each batch is of one, drawn evenly from this list, in which
            a level may stand more than once.
        validation: what is answered after each epoch; the score is that of all levels
            together.
        test: what is measured in the end, from the easiest level to the hardest, which
            the tables of all experiments show.
        updates_per_epoch: training steps of an epoch, each with a fresh batch.
        batch_size: of a training step; with segments, fresh problems of one.
        evaluation_batch_size: the most problems that are solved at once.
        seed: of validation and test, whatever that of the run, which training follows.
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
class ModelConfig:
    """A `ReasonerTagger`.

    Args:
        cell: a name of `deq_keras.layers`, with its arguments: `{class_name:
            recall_cell, filters: 32}`.
        embedding_units: features of the embedding of tokens, those of the cell if it
            counts `units`; null for a task whose inputs have channels.
        solver: of the equilibrium, as the other parts. In the last phase a fixed-point
            iteration: one solve then shows the answers at all budgets.
    """

    cell: Any = reasoning_cell_field()
    embedding_units: int | None = field(default=None, metadata=WIDTH)
    solver: Any = solver_field("fixed_point_iteration")
    gradient: Any = gradient_field("truncated")
    regularizer: Any = regularizer_field(None)
    initial_state: Any = initial_state_field("mixed")


@dataclass(frozen=True)
class PictureConfig:
    """The animated picture of a problem that is solved, of a maze or a Sudoku.

    Args:
        level: of the problem, which is one that training does not see.
        evaluations: one frame before each of them, and one after the last.
    """

    level: int = field(metadata=_LEVEL)
    evaluations: int = field(default=64, metadata={**BUDGET, "maximum": 500})


@dataclass(frozen=True)
class ReasoningEvaluationConfig(EvaluationConfig):
    """What is measured of a trained reasoner; see `EvaluationConfig`.

    Args:
        budgets: numbers of function evaluations (NFE) at which answers are read, at all
            test levels alike. What is lost by going on is known of those of which ten
            times as many are there too.
        num_samples: of the first test level, for the diagnosis.
        max_iter: evaluations of the diagnosis, and of the solves from other starts.
        restarts: how often each problem is solved to choose among the answers; null for
            once.
        picture: null for none.
    """

    budgets: list[int] = field(
        default_factory=lambda: [4, 8, 16, 32, 64, 128, 160, 320, 640],
        metadata={"non_empty": True, "distinct": True, **BUDGET},
    )
    num_samples: int = field(default=8, metadata=BATCH)
    max_iter: int = field(default=160, metadata=BUDGET)
    restarts: int | None = field(default=None, metadata={"minimum": 2, "maximum": 256})
    picture: PictureConfig | None = None


@dataclass(frozen=True)
class ReasoningConfig(VariantsConfig):
    """A reasoner; see `VariantsConfig`.

    Args:
        label_smoothing: the share of a target that is spread over all classes.
        segments: how the model is trained in segments, of problems of one level; null
            for whole searches in each step.
    """

    experiment: Literal["reasoning"]
    model: ModelConfig
    data: DataConfig = field(kw_only=True)
    label_smoothing: float = field(
        default=0.0, metadata={"minimum": 0.0, "maximum": 0.99}
    )
    segments: SegmentsConfig | None = None
    evaluation: ReasoningEvaluationConfig = ReasoningEvaluationConfig()
