"""What the config of a language model may say, with all defaults."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ...config.bounds import BATCH, BUDGET, COUNT, LAYERS, RATE, WIDTH
from ...config.component_fields import (
    gradient_field,
    initial_state_field,
    regularizer_field,
    solver_field,
)
from ...config.fields import VariantsConfig
from ...errors import InputError

# Tokens of a segment: attention holds a number for every pair of them.
_LENGTH = {"minimum": 1, "maximum": 2**16}
_VOCABULARY = {"minimum": 1, "maximum": 10_000_000}


@dataclass(frozen=True)
class TextConfig:
    """The text, and how it is cut into segments.

    Args:
        source: `embedded` (the documentation that ships with Python), `file` (one UTF-8
            file), `directory` (a folder of train.txt, validation.txt and, if you have
            one, test.txt; or of WikiText or Penn Treebank), `lm1b` or `wiki40b`
            (TensorFlow Datasets).
        path: of the file or directory, or the `data_dir` of TensorFlow Datasets.
        tokens: `character`, `word`, `subword` or `byte`.
        vocabulary_size: the most subwords; for these alone, which need it.
        lower_case: whether the text becomes lower case.
        minimum_count: tokens that occur less often become the unknown token.
        validation_fraction: of a `file`, its last part.
        max_examples: of TensorFlow Datasets; null takes all.
        batch_size: texts that are read in parallel.
        length: tokens of a segment.
        steps_per_epoch: null takes the whole text in every epoch. A number takes that
            many segments, and the next epoch goes on in the text where it stopped.
        evaluation_batch_size: of validation and test.
        evaluation_length: tokens of a segment there.
    """

    source: Literal["embedded", "file", "directory", "lm1b", "wiki40b"] = "embedded"
    path: str | None = None
    tokens: Literal["character", "word", "subword", "byte"] = "character"
    vocabulary_size: int | None = field(default=None, metadata=_VOCABULARY)
    lower_case: bool = False
    minimum_count: int = field(default=1, metadata=COUNT)
    validation_fraction: float = field(
        default=0.1, metadata={"above": 0.0, "maximum": 0.9}
    )
    max_examples: int | None = field(default=None, metadata=COUNT)
    batch_size: int = field(default=12, metadata=BATCH)
    length: int = field(default=64, metadata=_LENGTH)
    steps_per_epoch: int | None = field(default=None, metadata=COUNT)
    evaluation_batch_size: int = field(default=16, metadata=BATCH)
    evaluation_length: int = field(default=64, metadata=_LENGTH)


@dataclass(frozen=True)
class ExplicitConfig:
    """Arguments of `ExplicitTransformerBackbone` or `TransformerXLBackbone`."""

    num_layers: int = field(metadata=LAYERS)
    weight_tied: bool = False
    recompute: bool = False


@dataclass(frozen=True)
class TransformerConfig:
    """Arguments of `DEQTransformerBackbone`; see there.

    Args:
        explicit: explicit layers instead of an equilibrium, for comparison; `solver`,
            `gradient` and `regularizer` then mean nothing.
        transformer_xl: Transformer-XL instead of either; the same holds.
    """

    hidden_dim: int = field(metadata=WIDTH)
    num_heads: int = field(metadata=WIDTH)
    intermediate_dim: int = field(metadata=WIDTH)
    embedding_dim: int | None = field(default=None, metadata=WIDTH)
    cutoffs: list[int] = field(
        default_factory=list, metadata={"max_items": 16, **_VOCABULARY}
    )
    div_val: int = field(default=1, metadata=WIDTH)
    normalize_first: bool = False
    memory_length: int = field(default=0, metadata={**_LENGTH, "minimum": 0})
    local_size: int | None = field(default=None, metadata=_LENGTH)
    dropout: float = field(default=0.0, metadata=RATE)
    attention_dropout: float = field(default=0.0, metadata=RATE)
    weight_normalization: bool = True
    explicit: ExplicitConfig | None = None
    transformer_xl: ExplicitConfig | None = None
    solver: Any = solver_field("anderson")
    gradient: Any = gradient_field("neumann")
    regularizer: Any = regularizer_field("contraction")
    initial_state: Any = initial_state_field("cell")

    def __post_init__(self):
        if self.explicit is not None and self.transformer_xl is not None:
            raise InputError(
                "`model.explicit` and `model.transformer_xl` are different networks. "
                "Set one of them to null. Received: both."
            )


@dataclass(frozen=True)
class BudgetConfig:
    """What is measured of a trained model.

    Args:
        budgets: numbers of function evaluations (NFE) at which the loss of the test
            text, or else of the validation text, is measured.
        every_epochs: the validation loss is measured after every so many epochs.
        num_samples: validation segments for the residual curves and the spectral
            radius, which is also measured after every epoch.
        max_iter: evaluations of the solves there.
    """

    budgets: list[int] = field(
        default_factory=lambda: [2, 4, 6, 8, 12, 20, 30],
        metadata={"non_empty": True, **BUDGET},
    )
    every_epochs: int = field(default=1, metadata=COUNT)
    num_samples: int = field(default=8, metadata=BATCH)
    max_iter: int = field(default=30, metadata=BUDGET)


@dataclass(frozen=True)
class LanguageModelConfig(VariantsConfig):
    """A language model of a Transformer; see `VariantsConfig`.

    A model with a memory takes no `jit_compile`.
    """

    experiment: Literal["language_model"]
    model: TransformerConfig
    data: TextConfig = TextConfig()
    evaluation: BudgetConfig = BudgetConfig()

    def __post_init__(self):
        every_epochs = self.evaluation.every_epochs
        num_epochs = sum(phase.epochs for phase in self.phases)
        if every_epochs > num_epochs:
            raise InputError(
                f"`evaluation.every_epochs` must be at most {num_epochs}, the epochs "
                "of all phases, so that there is a validation loss to tell. "
                f"Received: every_epochs={every_epochs}."
            )
