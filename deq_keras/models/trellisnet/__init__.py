"""TrellisNet, the explicit baseline of the DEQ-TrellisNet."""

from deq_keras.models.trellisnet.trellisnet_backbone import TrellisNetBackbone
from deq_keras.models.trellisnet.trellisnet_causal_lm import TrellisNetCausalLM

__all__ = ["TrellisNetBackbone", "TrellisNetCausalLM"]
