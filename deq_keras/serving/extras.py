"""The packages that exports to other runtimes need: the extra `serving`."""

import importlib


def imported(name):
    """Returns a module of a package of the extra.

    Args:
        name: String. The name of the module, such as `"onnx"`.

    Raises:
        ImportError: If it is missing; says what to install.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"The package `{package}` is missing. Install what exports need: "
            'pip install "deq-keras[serving]"',
            name=error.name,
        ) from error
