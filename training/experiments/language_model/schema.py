"""The config of a language model, with all defaults."""

from dataclasses import dataclass, field
from typing import Literal

from ...config.bounds import BATCH, COUNT, LAYERS, RATE, WIDTH
from ...config.component_fields import components
from ...config.fields import EvaluationConfig, VariantsConfig
from ...errors import InputError

# Tokens per segment. Attention needs memory for every pair of tokens.
_LENGTH = {"minimum": 1, "maximum": 2**16}
_VOCABULARY = {"minimum": 1, "maximum": 10_000_000}


@dataclass(frozen=True)
class TextConfig:
    """The text and its segments.

    Args:
        source: `embedded` (the documentation that ships with Python), `file` (one UTF-8
            file) or `directory` (a folder with train.txt, validation.txt and optionally
            test.txt, or a folder of WikiText or Penn Treebank).
        path: Path of the file or directory.
        tokens: `character`, `word`, `subword` or `byte`.
        vocabulary_size: Positive integer. Maximum number of subwords. Required for
            `subword`, and only for it.
        lower_case: Boolean. Whether to convert the text to lower case.
        minimum_count: Positive integer. Rarer tokens become the unknown token.
        validation_fraction: Float. For `file`, the fraction at its end for validation.
        batch_size: Positive integer. Number of texts that are read in parallel.
        length: Positive integer. Tokens per segment.
        steps_per_epoch: Positive integer or null. Segments per epoch. The next epoch
            continues at the same position of the text. Null uses the whole text.
        evaluation_batch_size: Positive integer. Batch size of validation and test.
        evaluation_length: Positive integer. Tokens per segment in validation and test.
    """

    source: Literal["embedded", "file", "directory"] = "embedded"
    path: str | None = None
    tokens: Literal["character", "word", "subword", "byte"] = "character"
    vocabulary_size: int | None = field(default=None, metadata=_VOCABULARY)
    lower_case: bool = False
    minimum_count: int = field(default=1, metadata=COUNT)
    validation_fraction: float = field(
        default=0.1, metadata={"above": 0.0, "maximum": 0.9}
    )
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
class TransformerConfig(components(gradient="neumann", regularizer="contraction")):
    """Arguments of `DEQTransformerBackbone`; see there.

    Args:
        explicit: Explicit layers to train instead of an equilibrium, as a baseline.
            `solver`, `gradient` and `regularizer` are then ignored.
        transformer_xl: Transformer-XL to train instead, with the same effect.
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

    def __post_init__(self):
        if self.explicit is not None and self.transformer_xl is not None:
            raise InputError(
                "`model.explicit` and `model.transformer_xl` are different networks. "
                "Set one of them to null. Received: both."
            )


@dataclass(frozen=True)
class TextEvaluationConfig(EvaluationConfig):
    """The measurements of a trained model; see `EvaluationConfig`.

    `budgets` are of the loss of the test text, or of the validation text if there is no
    test text. `num_samples` are validation segments, whose spectral radius is also
    measured after every epoch.

    Args:
        every_epochs: Positive integer. Interval of epochs between measurements of the
            validation loss.
    """

    every_epochs: int = field(default=1, metadata=COUNT)


@dataclass(frozen=True)
class LanguageModelConfig(VariantsConfig):
    """A Transformer language model; see `VariantsConfig`.

    A model with a memory does not support `jit_compile`.
    """

    experiment: Literal["language_model"]
    model: TransformerConfig
    data: TextConfig = TextConfig()
    evaluation: TextEvaluationConfig = TextEvaluationConfig(
        [2, 4, 6, 8, 12, 20, 30], num_samples=8
    )

    def __post_init__(self):
        every_epochs = self.evaluation.every_epochs
        num_epochs = sum(phase.epochs for phase in self.phases)
        if every_epochs > num_epochs:
            raise InputError(
                f"`evaluation.every_epochs` must be at most {num_epochs}, the epochs "
                "of all phases, so that there is a validation loss to tell. "
                f"Received: every_epochs={every_epochs}."
            )
