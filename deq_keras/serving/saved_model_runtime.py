"""Asks a SavedModel; needs nothing but TensorFlow."""

import tensorflow as tf


def load(path):
    """Returns the function of a SavedModel from requests to answers.

    Args:
        path: String, the folder.

    Returns:
        Function of a dict of arrays, by the names of the inputs of one of the
        signatures, to a dict of arrays. Its `signatures` is a list of dicts, from these
        names to shapes and dtypes.
    """
    return _Folder(path)


class _Folder:
    def __init__(self, path):
        # Its functions hold their variables weakly.
        self._loaded = tf.saved_model.load(str(path))
        self._functions = {
            frozenset(function.structured_input_signature[1]): function
            for function in self._loaded.signatures.values()
        }
        self.signatures = [
            {
                name: (spec.shape, spec.dtype)
                for name, spec in function.structured_input_signature[1].items()
            }
            for function in self._functions.values()
        ]

    def __call__(self, request):
        function = self._functions[frozenset(request)]
        specs = function.structured_input_signature[1]
        tensors = {
            name: tf.constant(request[name], spec.dtype) for name, spec in specs.items()
        }
        return {name: tensor.numpy() for name, tensor in function(**tensors).items()}
