"""Export a model with its adaptive solver, and run the exported file."""

from deq_keras.serving.check import ExportError
from deq_keras.serving.litert import export_litert
from deq_keras.serving.load import LoadedModel, load
from deq_keras.serving.onnx import export_onnx
from deq_keras.serving.saved_model import export_saved_model

__all__ = [
    "ExportError",
    "LoadedModel",
    "export_litert",
    "export_onnx",
    "export_saved_model",
    "load",
]
