"""Check of the backend of Keras before Keras imports it."""

import json
import os
import sys


def check_backend() -> None:
    """Raises `ImportError` if Keras uses, or would use, a backend but TensorFlow."""
    if "keras" in sys.modules and hasattr(sys.modules["keras"], "config"):
        backend, source = sys.modules["keras"].config.backend(), "Keras, imported"
    elif os.environ.get("KERAS_BACKEND"):
        backend, source = os.environ["KERAS_BACKEND"], "environment variable"
    else:
        # Keras' rule for its folder.
        home = os.path.expanduser("~")
        home = home if os.access(home, os.W_OK) else "/tmp"
        folder = os.environ.get("KERAS_HOME", os.path.join(home, ".keras"))
        source = os.path.expanduser(os.path.join(folder, "keras.json"))
        try:
            with open(source, encoding="utf-8") as file:
                backend = json.load(file).get("backend", "tensorflow")
        except (OSError, ValueError):
            return  # Keras then uses TensorFlow.
    if backend != "tensorflow":
        raise ImportError(
            "deq_keras requires the backend TensorFlow: set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is imported. Received: backend="
            f"{backend!r} ({source}).",
            name="KERAS_BACKEND",
        )
