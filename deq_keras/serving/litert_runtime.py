"""Asks a LiteRT file; needs nothing but the package `ai-edge-litert`."""


def load(path):
    """Returns the function of a LiteRT file from requests to answers.

    Args:
        path: String, the file.

    Returns:
        Function of a dict of arrays, by the names of the inputs, to a dict of arrays.
    """
    from ai_edge_litert.interpreter import Interpreter

    # It is freed with the last of those who hold it, and its runner does not.
    interpreter = Interpreter(model_path=str(path))
    runner = interpreter.get_signature_runner()

    def answer(request, interpreter=interpreter):
        return runner(**request)

    return answer
