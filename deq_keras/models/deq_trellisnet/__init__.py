"""Language models whose TrellisNet is an equilibrium."""

from deq_keras.models.deq_trellisnet.deq_trellisnet_backbone import (
    DEQTrellisNetBackbone,
)
from deq_keras.models.deq_trellisnet.deq_trellisnet_causal_lm import (
    DEQTrellisNetCausalLM,
)
from deq_keras.models.deq_trellisnet.deq_trellisnet_causal_lm_preprocessor import (
    DEQTrellisNetCausalLMPreprocessor,
)

__all__ = [
    "DEQTrellisNetBackbone",
    "DEQTrellisNetCausalLM",
    "DEQTrellisNetCausalLMPreprocessor",
]
