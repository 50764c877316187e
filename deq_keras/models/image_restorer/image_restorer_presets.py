"""Trained models."""

from deq_keras.models.kerashub import trained

PRESETS = {
    "deblur": trained(
        "Sharpens gray photographs that a Gaussian of 1.5 pixels has blurred."
    )
}
