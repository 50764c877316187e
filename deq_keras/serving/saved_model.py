"""Exports to TensorFlow's SavedModel, which TensorFlow Serving serves."""

import keras
import tensorflow as tf

from deq_keras.checks import check_positive
from deq_keras.serving import saved_model_runtime
from deq_keras.serving.check import check_export
from deq_keras.serving.new_path import writing
from deq_keras.serving.samples import checked_samples
from deq_keras.serving.served_model import ServedModel


def export_saved_model(
    model,
    path,
    input_signature=None,
    samples=None,
    max_iter_limit=None,
    preprocessor=None,
    postprocessor=None,
    tolerance=1e-4,
):
    """Exports a model as a SavedModel, and checks it in a fresh process.

    It needs no Python package but TensorFlow, and has three signatures:

    * `serve(inputs)` returns the outputs and the `status` of each sample, with the
      solvers as they are configured. It is the default one.
    * `serve_with_statistics(inputs, max_iter, tol)` has a budget (int64 scalar) and a
      tolerance (float32 scalar), where `max_iter <= 0` and `tol < 0` stand for those of
      the solvers. Beside the outputs it returns `evaluations` (int32), `residual` and
      `status` (int32, of `deq_keras.solvers`: 0 converged, 1 out of budget, 2 not
      finite), each `(batch,)`.
    * `serve_warm(inputs, max_iter, tol, initial_state)` starts from a state, such as
      the `equilibrium` that it gives beside all that, of the request before. A sample
      of which the state is not finite starts as the model does.

    A model without an equilibrium layer has `serve` alone. With several, the names of
    statistics and states begin with that of the layer, `LAYER_evaluations`; the budget
    is that of each. A state of several tensors has the names `initial_state_0`,
    `initial_state_1`, ... A batch of any size is served.

    Args:
        model: A built `keras.Model`. A single input is called `inputs`, a single output
            `outputs`; others have the model's own names.
        path: Where to write: a folder that is not there yet.
        input_signature: Nest of `tf.TensorSpec`s, what is sent. Defaults to `None`,
            that of the preprocessor, or of a functional model.
        samples: Nest of arrays `(samples, ...)` to check with, like what is sent.
            Defaults to `None`, drawn at random where that can be done.
        max_iter_limit: Positive integer. The largest budget that is served: requests
            for more get that, and so do solvers that are configured for more. Defaults
            to `None`, the largest `max_iter` of the model's solvers.
        preprocessor: Optional function of tensors in a graph, from what is sent to the
            model's inputs; with an attribute `input_signature`, such as
            `deq_keras.serving.EncodedImages` or `Prompts`. One with tables or variables
            must be a `tf.Module` or a Keras layer, or they would not be saved.
        postprocessor: Optional function of the model's outputs, of its inputs, and of a
            Boolean tensor `(batch,)` (which samples failed; `None` without an
            equilibrium) to what is sent back; such as `deq_keras.serving.ClassNames`.
        tolerance: Float > 0. By how much an output may differ, relative to the largest
            where that is more than 1. Defaults to `1e-4`.

    Returns:
        The largest difference of an output between model and file.

    Raises:
        FileExistsError: If there is something at `path`.
        ValueError: If the inputs are not known, or samples do not fit them.
        ExportError: If a call would change variables, or the file gives other answers.

    Example:

    >>> import tempfile
    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    >>> path = f"{tempfile.mkdtemp()}/model"
    >>> export_saved_model(model, path)  # doctest: +SKIP
    0.0
    >>> served = tf.saved_model.load(path)  # doctest: +SKIP
    >>> served.serve_with_statistics(  # doctest: +SKIP
    ...     np.ones((2, 3), "float32"), 2, 0.0)["evaluations"].numpy()
    array([2, 2], dtype=int32)
    """
    tolerance = check_positive("tolerance", tolerance)
    with writing(path) as temporary:
        served = ServedModel(
            model, input_signature, max_iter_limit, preprocessor, postprocessor
        )
        samples = checked_samples(served.signature, samples)
        endpoints = {"serve": served.serve()}
        if len(served.solutions):
            endpoints["serve_with_statistics"] = served.serve_with_statistics()
            endpoints["serve_warm"] = served.serve_warm()
        _write(model, preprocessor, endpoints, temporary)
        return check_export(
            temporary,
            saved_model_runtime,
            list(endpoints.values()),
            {**samples, **served.states(samples)},
            tolerance,
        )


def _write(model, preprocessor, endpoints, path):
    archive = keras.export.ExportArchive()
    archive.track(model)
    if isinstance(preprocessor, tf.Module | keras.layers.Layer):
        archive.track(preprocessor)
    for name, function in endpoints.items():
        archive.add_endpoint(name, function)
    # Nobody differentiates what is served, and files are half as large.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    archive.write_out(path, options=options, verbose=False)
