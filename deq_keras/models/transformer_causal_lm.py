"""What the language models of Transformers have in common."""

from deq_keras.layers import AdaptiveSoftmax
from deq_keras.models.language_causal_lm import LanguageCausalLM


class TransformerCausalLM(LanguageCausalLM):
    """A `TransformerBackbone` with an `AdaptiveSoftmax` on its hidden states.

    The arguments are described in `DEQTransformerCausalLM`.
    """

    def __init__(
        self,
        backbone,
        preprocessor=None,
        tie_weights=True,
        tie_projections=None,
        compile=True,
        name=None,
    ):
        softmax = AdaptiveSoftmax(
            backbone.token_embedding,
            tie_weights=tie_weights,
            tie_projections=tie_projections,
            dtype=backbone.dtype_policy,
            name="softmax",
        )
        super().__init__(backbone, softmax, preprocessor, compile, name)

    def get_config(self):
        config = {
            "tie_weights": self.softmax.tie_weights,
            "tie_projections": list(self.softmax.tie_projections),
        }
        return {**super().get_config(), **config}
