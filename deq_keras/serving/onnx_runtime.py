"""Asks an ONNX file; needs nothing but the package `onnxruntime`."""

# Names of dtypes that ONNX and NumPy spell differently.
_DTYPES = {"float": "float32", "double": "float64"}


def load(path):
    """Returns the function of an ONNX file from requests to answers.

    Args:
        path: String, the file.

    Returns:
        Function of a dict of arrays, by the names of the inputs, to a dict of arrays.
        Its `signatures` is a list of one dict, from these names to shapes and dtypes.
    """
    return _File(path)


class _File:
    def __init__(self, path):
        import onnxruntime

        self._session = onnxruntime.InferenceSession(
            str(path), providers=["CPUExecutionProvider"]
        )
        self._names = [output.name for output in self._session.get_outputs()]
        self.signatures = [
            {
                tensor.name: (_shape(tensor.shape), _dtype(tensor.type))
                for tensor in self._session.get_inputs()
            }
        ]

    def __call__(self, request):
        tensors = self._session.run(self._names, request)
        return dict(zip(self._names, tensors, strict=True))


def _shape(sizes):
    return [size if isinstance(size, int) else None for size in sizes]


def _dtype(kind):
    name = kind.removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(name, name)
