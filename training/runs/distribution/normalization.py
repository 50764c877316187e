"""Batch normalisation over the batch of all replicas."""

import keras


def synchronize(model):
    """Makes all batch normalisation of a model one over the batches of all replicas.

    Without it each replica normalises its own part, and training is not what one device
    does with the whole batch.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
