"""The config of a language model, with all defaults."""

from typing import Literal

from ...config import keys
from ...config.fields import Components, Config, EvaluationConfig, VariantsConfig
from ...errors import InputError

# Tokens per segment. Attention needs memory for every pair of tokens.
_Length = keys.integer(le=2**16)


class TextConfig(Config):
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
    path: keys.Text | None = None
    tokens: Literal["character", "word", "subword", "byte"] = "character"
    vocabulary_size: keys.Vocabulary | None = None
    lower_case: bool = False
    minimum_count: keys.Count = 1
    validation_fraction: keys.HeldOut = 0.1
    batch_size: keys.Batch = 12
    length: _Length = 64
    steps_per_epoch: keys.Count | None = None
    evaluation_batch_size: keys.Batch = 16
    evaluation_length: _Length = 64


class ExplicitConfig(Config):
    """Arguments of `ExplicitTransformerBackbone` or `TransformerXLBackbone`."""

    num_layers: keys.Layers
    weight_tied: bool = False
    recompute: bool = False


class TransformerConfig(Components):
    """Arguments of `DEQTransformerBackbone`; see there.

    Args:
        explicit: Explicit layers to train instead of an equilibrium, as a baseline.
            `solver`, `gradient`, `regularizer` and `num_explicit_layers` are then
            ignored.
        transformer_xl: Transformer-XL to train instead, with the same effect.
    """

    gradient: keys.Component = "neumann"
    regularizer: keys.Component | None = "contraction"
    hidden_dim: keys.Width
    num_heads: keys.Width
    intermediate_dim: keys.Width
    embedding_dim: keys.Width | None = None
    cutoffs: keys.Several[keys.Vocabulary] = []
    div_val: keys.Width = 1
    normalize_first: bool = False
    memory_length: keys.integer(ge=0, le=2**16) = 0
    local_size: _Length | None = None
    dropout: keys.Rate = 0.0
    attention_dropout: keys.Rate = 0.0
    weight_normalization: bool = True
    num_explicit_layers: keys.integer(ge=0, le=2**10) = 0
    explicit: ExplicitConfig | None = None
    transformer_xl: ExplicitConfig | None = None

    def model_post_init(self, context):
        if self.explicit is not None and self.transformer_xl is not None:
            raise InputError(
                "`model.explicit` and `model.transformer_xl` are different networks. "
                "Set one of them to null. Received: both."
            )


class TextEvaluationConfig(EvaluationConfig):
    """The measurements of a trained model; see `EvaluationConfig`.

    `budgets` are of the loss of the test text, or of the validation text if there is no
    test text. `num_samples` are validation segments, whose spectral radius is also
    measured after every epoch.

    Args:
        every_epochs: Positive integer. Interval of epochs between measurements of the
            validation loss.
    """

    budgets: keys.Distinct[keys.Budget] = [2, 4, 6, 8, 12, 20, 30]
    num_samples: keys.Batch = 8
    every_epochs: keys.Count = 1


class LanguageModelConfig(VariantsConfig):
    """A Transformer language model; see `VariantsConfig`.

    A model with a memory does not support `jit_compile`.
    """

    experiment: Literal["language_model"]
    model: TransformerConfig
    data: TextConfig = TextConfig()
    evaluation: TextEvaluationConfig = TextEvaluationConfig()
