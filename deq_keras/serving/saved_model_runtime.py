"""Asks a SavedModel; needs nothing but TensorFlow."""

import tensorflow as tf


def load(path):
    """Returns the function of a SavedModel from requests to answers.

    Args:
        path: String, the folder.

    Returns:
        Function of a dict of arrays, by the names of the inputs of one of the
        signatures, to a dict of arrays.
    """
    loaded = tf.saved_model.load(str(path))

    def answer(request):
        for function in loaded.signatures.values():
            specs = function.structured_input_signature[1]
            if set(specs) == set(request):
                tensors = {
                    name: tf.constant(request[name], spec.dtype)
                    for name, spec in specs.items()
                }
                return {k: v.numpy() for k, v in function(**tensors).items()}
        raise ValueError(f"No signature takes these. Received: {sorted(request)}.")

    return answer
