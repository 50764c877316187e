"""Asks an ONNX file; needs nothing but the package `onnxruntime`."""


def load(path):
    """Returns the function of an ONNX file from requests to answers.

    Args:
        path: String, the file.

    Returns:
        Function of a dict of arrays, by the names of the inputs, to a dict of arrays.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]

    def answer(request):
        return dict(zip(names, session.run(names, request), strict=True))

    return answer
