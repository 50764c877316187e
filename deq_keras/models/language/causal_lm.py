"""The task that language models share."""

import keras
from keras_hub.models import CausalLM

from deq_keras.core.checks import check_boolean, check_count, check_rate
from deq_keras.layers import AdaptiveEmbedding, AdaptiveSoftmax, MixtureSoftmax
from deq_keras.models.kerashub import RestorableTask, head_dtype_config
from deq_keras.models.language.backbone import padding_mask_of, token_ids_of
from deq_keras.models.language.generation import IncrementalGeneration
from deq_keras.models.language.segments import SegmentReading


class LanguageCausalLM(SegmentReading, IncrementalGeneration, RestorableTask, CausalLM):
    """A `LanguageBackbone` with an `AdaptiveSoftmax` or a `MixtureSoftmax`.

    Outputs are log-probabilities, which are logits whose softmax is the distribution
    itself.

    Args:
        backbone: `LanguageBackbone`.
        preprocessor: `keras_hub.models.CausalLMPreprocessor`, or `None` for inputs
            that are token ids already. Defaults to `None`.
        tie_weights: Boolean. Whether the softmax uses the tables of the embedding.
            Defaults to `True`.
        tie_projections: Tuple of Booleans, one for each bucket. Whether the bucket
            uses the projection of the embedding. Defaults to `None`: with
            `tie_weights` all buckets but the first, otherwise no bucket.
        num_experts: Positive integer. Number of mixed softmaxes. Values above 1 require
            an embedding without `cutoffs`. Defaults to `1`.
        expert_dropout: Float in `[0, 1)`. See `dropout_rate` of `MixtureSoftmax`.
            Defaults to `0.0`.
        compile: Boolean. Whether to compile with KerasHub's defaults. Defaults to
            `True`.
        name: String. Name of the model. Defaults to `None`.
        head_dtype: Dtype or policy of the softmax. Defaults to `None`, the backbone's.

    Call arguments:
        inputs: See `LanguageBackbone`.

    Input shape:
        `(batch, length)`.

    Output shape:
        `(batch, length, vocabulary_size)`.
    """

    def __init__(
        self,
        backbone,
        preprocessor=None,
        tie_weights=True,
        *,
        tie_projections=None,
        num_experts=1,
        expert_dropout=0.0,
        compile=True,
        name=None,
        head_dtype=None,
    ):
        # === Layers ===
        tie_weights = check_boolean("tie_weights", tie_weights)
        num_experts = check_count("num_experts", num_experts)
        expert_dropout = check_rate("expert_dropout", expert_dropout)
        _check_experts(num_experts, expert_dropout, tie_projections)
        policy = {"dtype": head_dtype or backbone.dtype_policy, "name": "softmax"}
        if num_experts == 1:
            embedding = _softmax_embedding(backbone, tie_weights)
            softmax = AdaptiveSoftmax(embedding, tie_weights, tie_projections, **policy)
        else:
            softmax = MixtureSoftmax(
                backbone.token_embedding,
                num_experts,
                tie_weights,
                dropout_rate=expert_dropout,
                **policy,
            )

        # === Functional Model ===
        inputs = backbone.input
        self.backbone = backbone
        self.preprocessor = preprocessor
        super().__init__(
            inputs=inputs, outputs=softmax(backbone(inputs)), compile=compile, name=name
        )

        # === Config ===
        self.softmax = softmax
        self.num_experts = num_experts
        self.expert_dropout = expert_dropout
        self.head_dtype = head_dtype and softmax.dtype_policy

    def call(self, inputs, training=None, mask=None):
        if padding_mask_of(inputs) is None:
            return super().call(token_ids_of(inputs), training=training, mask=mask)
        return self.softmax(self.backbone(inputs, training=training))

    def token_losses(self, token_ids, targets):
        """Returns the symbolic losses of the targets, `(batch, length)`.

        Args:
            token_ids: Symbolic integer tensor `(batch, length)`.
            targets: Symbolic integer tensor `(batch, length)`.
        """
        return self.softmax(self.backbone(token_ids), targets)

    @property
    def segment_layer(self):
        """The layer that remembers earlier segments."""
        return self.backbone.segment_layer

    def get_compile_config(self):
        config = super().get_compile_config()
        if not self.compiled:  # `compile` sets the sampler.
            return config
        sampler = keras.saving.serialize_keras_object(self.sampler)
        return {**config, "sampler": sampler}

    def get_config(self):
        # Only an `AdaptiveSoftmax` holds projections.
        ties = getattr(self.softmax, "tie_projections", None)
        return {
            **super().get_config(),
            "tie_weights": self.softmax.tie_weights,
            "tie_projections": ties and list(ties),
            "num_experts": self.num_experts,
            "expert_dropout": self.expert_dropout,
            "head_dtype": head_dtype_config(self.softmax, self.head_dtype),
        }


def _check_experts(num_experts, expert_dropout, tie_projections):
    if num_experts == 1 and expert_dropout > 0:
        raise ValueError(
            "`expert_dropout` applies to several softmaxes. Use `num_experts` > 1, "
            "or the `output_dropout` of the backbone. Received: "
            f"expert_dropout={expert_dropout}, num_experts=1."
        )
    if num_experts > 1 and tie_projections is not None:
        raise ValueError(
            "`tie_projections` applies to a single softmax: a mixture has no "
            "projections. Leave it out, or use `num_experts=1`. Received: "
            f"tie_projections={tie_projections}, num_experts={num_experts}."
        )


def _softmax_embedding(backbone, tie_weights):
    """Returns an embedding whose outputs have the size of the hidden states."""
    embedding, hidden_dim = backbone.token_embedding, backbone.hidden_dim
    if embedding.output_dim == hidden_dim:
        return embedding
    if tie_weights:
        raise ValueError(
            "Embedding and softmax can share one table only if its rows have the size "
            "of the hidden states. Use the same `embedding_dim` and `hidden_dim`, "
            "`tie_weights=False`, or `num_experts` > 1, whose experts have the size of "
            f"the embedding. Received: embedding_dim={embedding.embedding_dim}, "
            f"hidden_dim={hidden_dim}, tie_weights=True."
        )
    config = {"embedding_dim": hidden_dim, "output_dim": hidden_dim}
    return AdaptiveEmbedding.from_config({**embedding.get_config(), **config})
