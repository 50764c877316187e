"""Exports to LiteRT, with its built-in operators alone."""

import contextlib
import pathlib
import re
import tempfile

import tensorflow as tf

from deq_keras.checks import check_optional_count, check_positive
from deq_keras.serving import litert_runtime
from deq_keras.serving.check import check_export
from deq_keras.serving.errors import ExportError
from deq_keras.serving.extras import imported
from deq_keras.serving.freezing import frozen, output_names
from deq_keras.serving.new_path import writing
from deq_keras.serving.samples import checked_samples
from deq_keras.serving.served_model import ServedModel

# How its converter names what it cannot convert: the operation, and where it is.
_LACKING = re.compile(r'\["(\w+):", "([^"@]+)[^\n]*?op is neither a custom op')


def export_litert(
    model,
    path,
    input_signature=None,
    samples=None,
    max_iter_limit=None,
    batch_size=None,
    warm_start=False,
    tolerance=1e-4,
):
    """Exports a model as a LiteRT file, and checks it in a fresh process.

    The file has one signature, which asks for a budget (int64 scalar `max_iter`) and a
    tolerance (float32 scalar `tol`); see `export_saved_model` for their meaning, for
    the names, and for the statistics beside the outputs. A model without an equilibrium
    layer takes its inputs alone. Needs the package `ai-edge-litert`, with which the
    file is checked.

    Args:
        model: A built `keras.Model` that computes in float32.
        path: Where to write: a file that is not there yet.
        input_signature: See `export_saved_model`.
        samples: See `export_saved_model`.
        max_iter_limit: See `export_saved_model`.
        batch_size: Positive integer. The number of samples of each request, since some
            delegates of accelerators want that fixed. Defaults to `None`, any number.
        warm_start: Boolean. Whether the signature also takes `initial_state`, and gives
            the `equilibrium`. Defaults to `False`.
        tolerance: See `export_saved_model`.

    Returns:
        The largest difference of an output between model and file.

    Raises:
        FileExistsError: If there is something at `path`.
        ImportError: If a package is missing.
        ValueError: If the inputs are not known, or samples do not fit them.
        ExportError: If LiteRT lacks an operation, which is named, or the file gives
            other answers.

    Example:

    >>> import tempfile
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> path = f"{tempfile.mkdtemp()}/model.tflite"
    >>> difference = export_litert(model, path)
    >>> ask = deq_keras.serving.load(path)
    >>> answer = ask({"inputs": np.ones((2, 3), "float32"),
    ...               "max_iter": np.array(2), "tol": np.array(0, "float32")})
    >>> answer["evaluations"]
    array([2, 2], dtype=int32)
    """
    imported("ai_edge_litert")
    batch_size = check_optional_count("batch_size", batch_size)
    tolerance = check_positive("tolerance", tolerance)
    with writing(path) as temporary:
        served = ServedModel(
            model, input_signature, max_iter_limit, batch_size=batch_size
        )
        samples = checked_samples(served.signature, samples)
        function = served.whole(warm_start)
        temporary.write_bytes(_converted(function))
        return check_export(
            temporary,
            litert_runtime,
            [function],
            {**samples, **served.states(samples)},
            tolerance,
            batch_size,
        )


def _converted(function):
    """Returns the bytes of the file."""
    concrete, names = frozen(function, "LiteRT"), output_names(function)

    @tf.function(input_signature=function.input_signature, autograph=False)
    def serve(*tensors):
        return dict(zip(names, concrete(*tensors), strict=True))

    module = tf.Module()
    module.serve = serve
    # A frozen function that is converted as it is loses its names; unfrozen weights
    # cannot be read within its loops.
    with tempfile.TemporaryDirectory() as folder:
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        with _quiet():
            tf.saved_model.save(module, folder, {"serve": serve}, options)
            return _convert(pathlib.Path(folder))


def _convert(folder):
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    try:
        return converter.convert()
    except Exception as error:
        lacking = dict.fromkeys(_LACKING.findall(str(error)))
        if not lacking:
            raise ExportError(f"LiteRT cannot convert this model: {error}") from error
        places = ", ".join(f"{kind} in {place!r}" for kind, place in lacking)
        raise ExportError(
            "LiteRT has no built-in operator for some operations of the model. Replace "
            "them in their layers, or give an `input_signature` of which only the "
            f"batch axis is open. Received: {places[:1000]}."
        ) from error


@contextlib.contextmanager
def _quiet():
    """Without the warnings about gradients, which nobody asks a file for."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)
