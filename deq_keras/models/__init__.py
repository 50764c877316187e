"""Models of the papers, in the style of KerasHub."""

import deq_keras.tokenizers  # noqa: F401  Registers the tokenizers of saved models.
from deq_keras.models import (
    continuous_batching,
    deq_transformer,
    deq_trellisnet,
    image_restorer,
    language,
    mdeq,
    reasoner,
    transformer_xl,
)
from deq_keras.models.continuous_batching import *
from deq_keras.models.deq_transformer import *
from deq_keras.models.deq_trellisnet import *
from deq_keras.models.explicit_twin import UntiedLayers, explicit_twin
from deq_keras.models.image_restorer import *
from deq_keras.models.language import *
from deq_keras.models.mdeq import *
from deq_keras.models.monitored_model import MonitoredModel
from deq_keras.models.monotone import MonotoneClassifier
from deq_keras.models.reasoner import *
from deq_keras.models.transformer_xl import *

__all__ = ["MonitoredModel", "MonotoneClassifier", "UntiedLayers", "explicit_twin"]
__all__ += continuous_batching.__all__
__all__ += deq_transformer.__all__
__all__ += deq_trellisnet.__all__
__all__ += image_restorer.__all__
__all__ += language.__all__
__all__ += mdeq.__all__
__all__ += reasoner.__all__
__all__ += transformer_xl.__all__
