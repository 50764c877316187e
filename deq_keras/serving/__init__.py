"""One file that carries a model and its adaptive solver anywhere."""

from deq_keras.serving.class_names import ClassNames
from deq_keras.serving.encoded_images import EncodedImages
from deq_keras.serving.equilibrium_cache import EquilibriumCache
from deq_keras.serving.errors import ExportError
from deq_keras.serving.litert import export_litert
from deq_keras.serving.load import load
from deq_keras.serving.next_tokens import NextTokens
from deq_keras.serving.onnx import export_onnx
from deq_keras.serving.prompts import Prompts
from deq_keras.serving.restarts_model import RestartsModel
from deq_keras.serving.saved_model import export_saved_model
from deq_keras.serving.warm_start_model import WarmStartModel

__all__ = [
    "ClassNames",
    "EncodedImages",
    "EquilibriumCache",
    "ExportError",
    "NextTokens",
    "Prompts",
    "RestartsModel",
    "WarmStartModel",
    "export_litert",
    "export_onnx",
    "export_saved_model",
    "load",
]
