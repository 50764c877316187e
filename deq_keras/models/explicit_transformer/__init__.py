"""The explicit baseline of the DEQ-Transformer."""

from deq_keras.models.explicit_transformer.explicit_transformer_backbone import (
    ExplicitTransformerBackbone,
)
from deq_keras.models.explicit_transformer.explicit_transformer_causal_lm import (
    ExplicitTransformerCausalLM,
)

__all__ = ["ExplicitTransformerBackbone", "ExplicitTransformerCausalLM"]
