"""A look for variables that a call would change: requests know nothing of another."""

from deq_keras.serving.errors import ExportError
from deq_keras.serving.graph import nodes


def check_unchanged(function):
    """Raises `ExportError` if a traced function changes a variable.

    Args:
        function: A `tf.ConcreteFunction`.
    """
    changes = [node for node in nodes(function) if node.op.startswith("Assign")]
    if changes:
        raise ExportError(
            "A served model answers each request alone, but this one changes variables "
            "when it is called, such as a memory or a random seed. Received: "
            f"{changes[0].op} in {changes[0].name!r}."
        )
