"""The names, shapes and dtypes of what is sent to a model, and of what it answers."""

import re

import keras
import tensorflow as tf
from keras import tree

# What a request may say besides its inputs, and an answer besides its outputs.
_TAKEN = re.compile(
    r"max_iter|tol|(.*_)?(initial_state|equilibrium)(_\d+)?"
    r"|(.*_)?(evaluations|residual|status)"
)


def sent_signature(model, preprocessor=None, input_signature=None):
    """Returns the nest of `tf.TensorSpec`s of what is sent.

    Args:
        model: A built `keras.Model`.
        preprocessor: Optional; with an attribute `input_signature` it tells its own.
        input_signature: Optional nest of `tf.TensorSpec`s, the answer if there is one.
    """
    if input_signature is None and preprocessor is not None:
        input_signature = getattr(preprocessor, "input_signature", None)
    elif input_signature is None:
        input_signature = _inputs(model)
    if input_signature is None:
        raise ValueError(
            "Give `input_signature`, a nest of `tf.TensorSpec`s with an open batch "
            "axis: neither this model nor its preprocessor tells what it takes. "
            f"Received: {type(model).__name__} {model.name!r}, input_signature=None."
        )
    return tree.map_structure(_spec, input_signature)


def with_batch_size(signature, batch_size):
    """Returns a signature of batches of one size only, unless that is `None`."""
    if batch_size is None:
        return signature
    return tree.map_structure(
        lambda spec: tf.TensorSpec(
            (batch_size, *spec.shape[1:]), spec.dtype, spec.name
        ),
        signature,
    )


def named(signature):
    """Returns the `tf.TensorSpec`s of a signature by name: `inputs` for a single one,
    the keys of a dict, or the names that the specs have."""
    leaves = tree.flatten(signature)
    if not tree.is_nested(signature):
        names = ["inputs"]
    elif isinstance(signature, dict):
        names = sorted(signature)
    else:
        names = [spec.name or f"inputs_{i}" for i, spec in enumerate(leaves)]
    _check_names("inputs", names, len(leaves))
    return {
        name: tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for name, spec in zip(names, leaves, strict=True)
    }


def named_outputs(outputs):
    """Returns outputs by name: `outputs` for a single one, the keys of a dict, or
    `outputs_0`, `outputs_1`, ..."""
    if isinstance(outputs, dict):
        result = dict(outputs)
    elif isinstance(outputs, list | tuple):
        result = {f"outputs_{i}": leaf for i, leaf in enumerate(outputs)}
    else:
        result = {"outputs": outputs}
    _check_names("outputs", result, len(tree.flatten(result)))
    return {name: as_sent(leaf) for name, leaf in result.items()}


def as_sent(tensor):
    """Returns a tensor in the dtype that is sent."""
    return tf.cast(tensor, sent_dtype(tensor.dtype))


def sent_dtype(dtype):
    """Returns float32 in place of half precision, which few clients know."""
    return tf.float32 if dtype in (tf.bfloat16, tf.float16) else dtype


def _inputs(model):
    inputs = getattr(model, "input", None)
    if inputs is None:  # A sequential model has only a list of its one input.
        inputs = getattr(model, "inputs", None)
    return inputs[0] if isinstance(inputs, list) and len(inputs) == 1 else inputs


def _spec(leaf):
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    return tf.TensorSpec(leaf.shape, dtype, name=getattr(leaf, "name", None))


def _check_names(kind, names, count):
    taken = [name for name in names if _TAKEN.fullmatch(name)]
    if taken or len(set(names)) != count:
        raise ValueError(
            f"The {kind} of an exported model must be a tensor, a list or a flat dict "
            "of tensors, each with a name that says nothing of a solve. "
            f"Received: {count} {kind} named {list(names)}."
        )
