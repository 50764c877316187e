"""A trial of each tool of docs/guides/tools.md."""

import copy
import http.server
import pickle
import threading
import urllib.parse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import deq_keras
from deq_keras import layers

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = X[:, :1] * X[:, 1:2]
LABELS = (Y[:, 0] > 0).astype("int32")


def _model(optimizer="adam", cell=None, **compiled):
    deq = layers.DEQ(cell or layers.DenseCell(4), name="deq")
    model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **compiled)
    return model


def _fit(model=None, data=(X, Y), **arguments):
    """Trains two epochs; every weight must change, and the loss be finite."""
    model = model or _model()
    before = [variable.numpy() for variable in model.trainable_variables]
    history = model.fit(*data, epochs=2, verbose=0, **arguments).history
    assert np.all(np.isfinite(history["loss"]))
    for old, variable in zip(before, model.trainable_variables, strict=True):
        assert not np.array_equal(old, variable)
    return model, history


def _callback(name, *arguments, **options):
    def run(folder):
        inserted = [folder / one if isinstance(one, Path) else one for one in arguments]
        callback = getattr(keras.callbacks, name)(*map(_text, inserted), **options)
        _, history = _fit(callbacks=[callback], validation_data=(X, Y))
        assert "val_deq_residual" in history

    return run


def _text(argument):
    return str(argument) if isinstance(argument, Path) else argument


def _optimizer(name, **options):
    return lambda folder: _fit(_model(getattr(keras.optimizers, name)(**options)))


def _wrap_in_time(folder):
    inputs = keras.Input((5, 3))
    outputs = keras.layers.TimeDistributed(layers.DEQ(layers.DenseCell(4)))(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    model.compile("adam", "mse")
    _fit(model, (np.stack([X] * 5, axis=1), np.stack([Y] * 5, axis=1)))


def _recompute(folder):
    with keras.RematScope(mode="full"):
        _fit()


def _adapt(folder):
    model, _ = _fit()
    model.layers[0].cell.recurrent.enable_lora(2)
    before = model.predict(X, verbose=0)
    model.compile("adam", "mse")
    _fit(model)
    assert not np.array_equal(model.predict(X, verbose=0), before)


def _normalize(folder):
    keras.layers.SpectralNormalization(layers.DEQ(layers.DenseCell(4)))(X)


def _monitor(folder):
    received = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            received.append(urllib.parse.unquote_plus(str(self.rfile.read(length))))
            self.send_response(200)
            self.end_headers()

    with http.server.HTTPServer(("localhost", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://localhost:{server.server_port}"
        _fit(callbacks=[keras.callbacks.RemoteMonitor(address)])
        server.shutdown()
    assert len(received) == 2 and "deq_residual" in received[0]


def _quantize(mode, export=None):
    def run(folder):
        model, _ = _fit()
        expected = model.predict(X, verbose=0)
        model.quantize(mode)
        found = model.predict(X, verbose=0)
        np.testing.assert_allclose(found, expected, atol=0.3)
        if export is not None:
            export(model, folder)

    return run


def _litert(model, folder):
    deq_keras.serving.export_litert(model, folder / "model.tflite")


def _export(export, suffix):
    def run(folder):
        model, _ = _fit()
        path = folder / f"model{suffix}"
        getattr(deq_keras.serving, export)(model, path)
        answer = deq_keras.serving.load(path)(X)
        expected = model.predict(X, verbose=0)
        np.testing.assert_allclose(answer["outputs"], expected, atol=1e-4)

    return run


def _keras_export(name, suffix=""):
    def run(folder):
        model, _ = _fit()
        model.export(str(folder / f"file{suffix}"), format=name, verbose=False)

    return run


def _save(suffix):
    def run(folder):
        model, _ = _fit()
        path = folder / f"model{suffix}"
        if suffix == ".keras":
            model.save(path)
            loaded = keras.saving.load_model(path)
        else:
            model.save_weights(path)
            loaded = _model()
            loaded.load_weights(path)
        np.testing.assert_array_equal(
            loaded.predict(X, verbose=0), model.predict(X, verbose=0)
        )

    return run


def _copy(folder):
    model, _ = _fit()
    found = copy.deepcopy(model).predict(X, verbose=0)
    np.testing.assert_array_equal(found, model.predict(X, verbose=0))


def _pickle(folder):
    model, _ = _fit()
    found = pickle.loads(pickle.dumps(model)).predict(X, verbose=0)
    np.testing.assert_array_equal(found, model.predict(X, verbose=0))


def _checkpoint(folder):
    model, _ = _fit()
    path = tf.train.Checkpoint(model=model).save(str(folder / "checkpoint"))
    restored = _model()
    status = tf.train.Checkpoint(model=restored).restore(path)
    status.assert_existing_objects_matched()
    np.testing.assert_array_equal(
        restored.predict(X, verbose=0), model.predict(X, verbose=0)
    )


def _saved_model(folder):
    model, _ = _fit()
    tf.saved_model.save(model, str(folder / "model"))
    signature = tf.saved_model.load(str(folder / "model")).signatures["serving_default"]
    (found,) = signature(tf.constant(X)).values()
    np.testing.assert_allclose(found, model.predict(X, verbose=0), atol=1e-6)


def _wrap_file(folder):
    model, _ = _fit()
    deq_keras.serving.export_saved_model(model, folder / "model")
    layer = keras.layers.TFSMLayer(folder / "model", call_endpoint="serve")
    found = layer(X)["outputs"]
    np.testing.assert_allclose(found, model.predict(X, verbose=0), atol=1e-6)


def _clone(folder):
    model, _ = _fit()
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    found = clone.predict(X, verbose=0)
    np.testing.assert_array_equal(found, model.predict(X, verbose=0))


def _state_tree(folder):
    model, _ = _fit()
    tree = model.get_state_tree("numpy_array")  # The default holds live variables.
    expected = model.predict(X, verbose=0)
    _fit(model)
    model.set_state_tree(tree)
    np.testing.assert_array_equal(model.predict(X, verbose=0), expected)


def _stateless(folder):
    model, _ = _fit()
    trainable = [one.value for one in model.trainable_variables]
    rest = [one.value for one in model.non_trainable_variables]
    found, _ = model.stateless_call(trainable, rest, X, training=False)
    np.testing.assert_allclose(found, model.predict(X, verbose=0), atol=1e-6)


def _vectorize(folder):
    model, _ = _fit()
    rows = tf.vectorized_map(lambda row: model(row[None], training=False)[0], X)
    np.testing.assert_allclose(rows, model.predict(X, verbose=0), atol=1e-5)


def _forward_mode(folder):
    deq = layers.DEQ(layers.DenseCell(4))
    deq(X)
    keras.ops.jvp(deq, (tf.constant(X),), (tf.ones_like(X),))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        return X[rows], Y[rows]


def _tf_data(folder):
    _fit(data=(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8),))


def _data_service(folder):
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
    )
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    distribute = tf.data.experimental.service.distribute
    _fit(data=(data.apply(distribute("parallel_epochs", dispatcher.target)),))
    del worker


def _tfds(folder):
    import tensorflow_datasets as tfds

    stored = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y})
    tfds.dataset_builders.store_as_tfds_dataset(
        "rows",
        version="1.0.0",
        data_dir=folder,
        split_datasets={"train": stored},
        features=tfds.features.FeaturesDict(
            {
                "x": tfds.features.Tensor(shape=(3,), dtype=np.float32),
                "y": tfds.features.Tensor(shape=(1,), dtype=np.float32),
            }
        ),
        disable_shuffling=True,
    )
    data = tfds.load("rows", split="train", data_dir=folder)
    _fit(data=(data.map(lambda row: (row["x"], row["y"])).batch(8),))


def _grain(folder):
    import grain

    data = grain.MapDataset.source([*zip(X, Y, strict=True)]).batch(8)
    _fit(data=(data.to_iter_dataset(),))


def _distill(folder):
    teacher, _ = _fit()
    distiller = keras.distillation.Distiller(
        teacher, _model(), keras.distillation.LogitsDistillation(loss="mse")
    )
    distiller.compile("adam", "mse")
    history = distiller.fit(X, Y, epochs=2, verbose=0).history
    assert all(np.all(np.isfinite(values)) for values in history.values())


def _tune(folder):
    import keras_tuner

    def build(choices):
        width = choices.Choice("width", [2, 4])
        return _model(cell=layers.DenseCell(width))

    tuner = keras_tuner.RandomSearch(
        build, keras_tuner.Objective("val_loss", "min"), 2, directory=str(folder)
    )
    tuner.search(X, Y, validation_data=(X, Y), verbose=0)
    assert tuner.get_best_models(1)[0].predict(X, verbose=0).shape == Y.shape


def _classify(folder):
    def build(X, y):
        deq = layers.DEQ(layers.DenseCell(4))
        head = keras.layers.Dense(2, "softmax")
        model = keras.Sequential([keras.Input((3,)), deq, head])
        model.compile("adam", "categorical_crossentropy")
        return model

    classifier = keras.wrappers.SKLearnClassifier(build, fit_kwargs={"verbose": 0})
    assert classifier.fit(X, LABELS).predict(X).shape == LABELS.shape


def _threads(folder):
    model, _ = _fit()
    path = folder / "model.tflite"
    deq_keras.serving.export_litert(model, path)
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=2)
    runner = interpreter.get_signature_runner()
    name, *_ = set(runner.get_input_details()) - {"max_iter", "tol"}
    budget = {"max_iter": np.array(30, "int64"), "tol": np.array(1e-3, "float32")}
    found = runner(**{name: X}, **budget)
    np.testing.assert_allclose(found["outputs"], model.predict(X, verbose=0), atol=1e-4)


def _onnx_without_optimizations(folder):
    import onnxruntime

    model, _ = _fit()
    path = folder / "model.onnx"
    deq_keras.serving.export_onnx(model, path)
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    found = session.run(["outputs"], {session.get_inputs()[0].name: X})[0]
    np.testing.assert_allclose(found, model.predict(X, verbose=0), atol=1e-4)


def _openvino(folder):
    import openvino

    model, _ = _fit()
    path = folder / "model.onnx"
    deq_keras.serving.export_onnx(model, path)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.compile_model(str(path), "CPU", options)
    found = compiled([X])["outputs"]
    np.testing.assert_allclose(found, model.predict(X, verbose=0), atol=1e-4)


def _average(folder):
    optimizer = keras.optimizers.Adam(use_ema=True)
    _fit(_model(optimizer), callbacks=[keras.callbacks.SwapEMAWeights()])


def _scale(folder):
    _fit(_model(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())))


def _reverse(folder):
    keras.layers.Bidirectional(layers.DEQ(layers.DenseCell(4)))


def _read_batches(folder):
    _fit(data=(Batches(),))


# A trial for each row of the page.
TOOLS = {
    "`callbacks.BackupAndRestore`": _callback("BackupAndRestore", Path("backup")),
    "`callbacks.CSVLogger`": _callback("CSVLogger", Path("log.csv")),
    "`callbacks.EarlyStopping`": _callback(
        "EarlyStopping", "val_deq_residual", mode="min", restore_best_weights=True
    ),
    "`callbacks.LambdaCallback`": _callback(
        "LambdaCallback", on_epoch_end=lambda epoch, logs: logs["deq_residual"]
    ),
    "`callbacks.LearningRateScheduler`": _callback(
        "LearningRateScheduler", lambda epoch, rate: rate / 2
    ),
    "`callbacks.ModelCheckpoint`": _callback(
        "ModelCheckpoint", Path("best.keras"), save_best_only=True
    ),
    "`callbacks.OrbaxCheckpoint`": _callback("OrbaxCheckpoint", Path("orbax")),
    "`callbacks.ProgbarLogger`": _callback("ProgbarLogger"),
    "`callbacks.ReduceLROnPlateau`": _callback("ReduceLROnPlateau", patience=0),
    "`callbacks.RemoteMonitor`": _monitor,
    "`callbacks.SwapEMAWeights`": _average,
    "`callbacks.TensorBoard`": _callback(
        "TensorBoard", Path("events"), histogram_freq=1
    ),
    "`callbacks.TerminateOnNaN`": _callback("TerminateOnNaN"),
    "`optimizers.Muon`": _optimizer("Muon"),
    "`optimizers.ScheduleFreeAdamW`": _optimizer("ScheduleFreeAdamW"),
    "`optimizers.Lion`": _optimizer("Lion"),
    "`Adam(gradient_accumulation_steps=2)`": _optimizer(
        "Adam", gradient_accumulation_steps=2
    ),
    "`optimizers.LossScaleOptimizer`": _scale,
    "`layers.TimeDistributed`": _wrap_in_time,
    "`layers.Bidirectional`": _reverse,
    "`layers.SpectralNormalization`": _normalize,
    "`enable_lora`": _adapt,
    "`keras.RematScope`": _recompute,
    "`keras.distillation.Distiller`": _distill,
    '`quantize("int8")`': _quantize("int8"),
    '`quantize("int4")`': _quantize("int4"),
    '`quantize("float8")`': _quantize("float8"),
    '`quantize("int8")`, then `export_litert`': _quantize("int8", _litert),
    '`quantize("int4")`, then `export_litert`': _quantize("int4", _litert),
    "`stateless_call`": _stateless,
    "`tf.vectorized_map`": _vectorize,
    "`keras.ops.jvp`": _forward_mode,
    "`keras.utils.PyDataset`": _read_batches,
    "`tf.data`": _tf_data,
    "tf.data service": _data_service,
    "TensorFlow Datasets": _tfds,
    "Grain": _grain,
    "KerasTuner": _tune,
    "`SKLearnClassifier` of Keras": _classify,
    "`save`, `load_model`": _save(".keras"),
    "`save_weights`, `load_weights`": _save(".weights.h5"),
    "`get_state_tree`, `set_state_tree`": _state_tree,
    "`copy.deepcopy`": _copy,
    "`clone_model`": _clone,
    "`pickle`": _pickle,
    "`tf.train.Checkpoint`": _checkpoint,
    "`tf.saved_model.save`": _saved_model,
    "`layers.TFSMLayer` of `export_saved_model`": _wrap_file,
    "`export_saved_model`": _export("export_saved_model", ""),
    "`export_litert`": _export("export_litert", ".tflite"),
    "`export_onnx`": _export("export_onnx", ".onnx"),
    '`model.export(format="tf_saved_model")`': _keras_export("tf_saved_model"),
    '`model.export(format="litert")`': _keras_export("litert", ".tflite"),
    '`model.export(format="onnx")`': _keras_export("onnx", ".onnx"),
    '`model.export(format="openvino")`': _keras_export("openvino", ".xml"),
    "LiteRT with two threads": _threads,
    "ONNX Runtime without optimizations": _onnx_without_optimizations,
    "OpenVINO, with the hint of float32": _openvino,
}
