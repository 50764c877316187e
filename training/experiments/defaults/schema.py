"""The config of the small tasks, with all defaults."""

from typing import Literal

from ...config import keys
from ...config.fields import AUTO, Components, Config, EvaluationConfig, VariantsConfig
from ...errors import InputError

TASKS = (
    "digits_pooled",
    "digits_positions",
    "digits_dense",
    "regression",
    "tabular_gru",
    "parity",
    "seen_before",
    "brackets",
    "blobs",
    "flood",
)

# Drawn examples are in memory; grids and images are the largest.
_Drawn = keys.integer(le=1_000_000)


class DataConfig(Config):
    """The examples of a task.

    Args:
        task: Name of the task.

            - `digits_pooled`, `digits_positions`: digits, by a residual block on images
              without and with positions in the head.
            - `digits_dense`: digits, by a dense cell on pixels.
            - `regression`: a function of four numbers, by a dense cell.
            - `tabular_gru`: a function of six numbers, by the GRU cell of Keras, which
              converges slowly.

            In the other tasks, information must travel; all except `blobs` have a label
            at each position.

            - `parity`: parity of every prefix of 16 bits, by convolutions.
            - `seen_before`: whether a token has been seen before, by a transformer
              cell.
            - `brackets`: whether a bracket has a partner, by a transformer block of
              KerasHub.
            - `blobs`: how many squares are in an image, by convolutions and a pooled
              head.
            - `flood`: which free pixels of a grid have a path to the source, by
              convolutions; the score covers free pixels.
        batch_size: Positive integer. Batch size of training.
        train_examples: Positive integer. Training examples, the first ones of the
            digits. Null uses all digits, or 2048 examples of a drawn task.
        test_examples: Positive integer. Null uses all digits, or 1024 drawn examples.
        updates: Float. Factor of the training steps of an epoch, which has at least
            one. With 1, an epoch trains on every example once.
    """

    task: Literal[TASKS] = "regression"
    batch_size: keys.Batch = 64
    train_examples: _Drawn | None = None
    test_examples: _Drawn | None = None
    updates: keys.number(gt=0, le=100) = 1.0


class ModelConfig(Components):
    """The cell of the task in an equilibrium layer.

    With `auto`, `DEQ` selects a component that suits the cell.

    Args:
        units: Positive integer. Channels or units of the state; a multiple of 4 for
            cells of convolutions or attention.
    """

    solver: keys.Component = AUTO
    gradient: keys.Component = AUTO
    regularizer: keys.Component | None = AUTO
    units: keys.Width = 32


class DefaultsEvaluationConfig(EvaluationConfig):
    """The measurements of a trained model; see `EvaluationConfig`."""

    budgets: keys.Distinct[keys.Budget] = [60]
    num_samples: keys.Batch = 64
    max_iter: keys.Budget = 60


class DefaultsConfig(VariantsConfig):
    """Variants of an equilibrium layer on small tasks; see `VariantsConfig`.

    Every model is also measured at the budget of its own solver.

    Args:
        references: List of variants. Other variants are compared with the best of them,
            seed by seed.
    """

    experiment: Literal["defaults"]
    model: ModelConfig
    data: DataConfig = DataConfig()
    references: keys.Several[keys.Text] = []
    evaluation: DefaultsEvaluationConfig = DefaultsEvaluationConfig()

    def model_post_init(self, context):
        # The config of a single run does not contain tasks and other variants.
        if self.tasks is None:
            return
        for index, reference in enumerate(self.references):
            if reference not in self.variants:
                raise InputError(
                    f"`references.{index}` must be one of the variants, "
                    f"{', '.join(self.variants)}. Received: references={reference!r}."
                )
