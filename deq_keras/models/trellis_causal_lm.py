"""What the language models of TrellisNets have in common."""

import keras

from deq_keras.checks import check_boolean, check_count, check_rate
from deq_keras.layers import AdaptiveEmbedding, AdaptiveSoftmax, MixtureSoftmax
from deq_keras.models.language_causal_lm import LanguageCausalLM


class TrellisCausalLM(LanguageCausalLM):
    """A `TrellisBackbone` with a softmax, or a mixture of them.

    The arguments are described in `DEQTrellisNetCausalLM`.
    """

    def __init__(
        self,
        backbone,
        preprocessor=None,
        tie_weights=True,
        num_experts=1,
        expert_dropout=0.0,
        compile=True,
        name=None,
        head_dtype=None,
    ):
        tie_weights = check_boolean("tie_weights", tie_weights)
        num_experts = check_count("num_experts", num_experts)
        expert_dropout = check_rate("expert_dropout", expert_dropout)
        if num_experts == 1 and expert_dropout > 0:
            raise ValueError(
                "`expert_dropout` is that of several softmaxes. Use `num_experts` > 1, "
                "or the `output_dropout` of the backbone. Received: "
                f"expert_dropout={expert_dropout}, num_experts=1."
            )
        arguments = {"dtype": head_dtype or backbone.dtype_policy, "name": "softmax"}
        if num_experts == 1:
            embedding = _softmax_embedding(backbone, tie_weights)
            softmax = AdaptiveSoftmax(embedding, tie_weights, **arguments)
        else:
            softmax = MixtureSoftmax(
                backbone.token_embedding,
                num_experts,
                tie_weights,
                dropout_rate=expert_dropout,
                **arguments,
            )
        super().__init__(backbone, softmax, preprocessor, compile, name)
        self.num_experts = num_experts
        self.expert_dropout = expert_dropout
        self.head_dtype = head_dtype and softmax.dtype_policy

    def get_config(self):
        dtype = self.head_dtype and keras.dtype_policies.serialize(self.head_dtype)
        if any(layer.quantization_mode for layer in self.softmax._flatten_layers()):
            dtype = self.softmax.get_config()["dtype"]
        return {
            **super().get_config(),
            "head_dtype": dtype,
            "tie_weights": self.softmax.tie_weights,
            "num_experts": self.num_experts,
            "expert_dropout": self.expert_dropout,
        }


def _softmax_embedding(backbone, tie_weights):
    """Returns the embedding that says the sizes of a softmax."""
    embedding, hidden_dim = backbone.token_embedding, backbone.hidden_dim
    if embedding.embedding_dim == hidden_dim:
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
