"""Asks a LiteRT file; needs nothing but the package `ai-edge-litert`."""

import threading


def load(path):
    """Returns the function of a LiteRT file from requests to answers.

    Args:
        path: String, the file.

    Returns:
        Function of a dict of arrays, by the names of the inputs, to a dict of arrays.
        Its `signatures` is a list of one dict, from these names to shapes and dtypes.
    """
    return _File(path)


class _File:
    def __init__(self, path):
        from ai_edge_litert.interpreter import Interpreter

        # The runner holds no reference to its interpreter.
        self._interpreter = Interpreter(model_path=str(path))
        self._runner = self._interpreter.get_signature_runner()
        self._lock = threading.Lock()
        self.signatures = [
            {
                name: (_shape(tensor["shape_signature"]), tensor["dtype"])
                for name, tensor in self._runner.get_input_details().items()
            }
        ]

    def __call__(self, request):
        # An interpreter has one set of buffers, and two threads in it crash a process.
        with self._lock:
            return self._runner(**request)


def _shape(sizes):
    return [None if size < 0 else int(size) for size in sizes]
