"""DEQ-TrellisNet, and its explicit baseline, the TrellisNet."""

from deq_keras.models.deq_trellisnet.deq_trellisnet_backbone import (
    DEQTrellisNetBackbone,
)
from deq_keras.models.deq_trellisnet.deq_trellisnet_causal_lm import (
    DEQTrellisNetCausalLM,
    DEQTrellisNetCausalLMPreprocessor,
)
from deq_keras.models.deq_trellisnet.trellisnet import (
    TrellisNetBackbone,
    TrellisNetCausalLM,
)

__all__ = [
    "DEQTrellisNetBackbone",
    "DEQTrellisNetCausalLM",
    "DEQTrellisNetCausalLMPreprocessor",
    "TrellisNetBackbone",
    "TrellisNetCausalLM",
]
