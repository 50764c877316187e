"""Names, shapes and dtypes of requests and responses."""

import keyword
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from deq_keras.solvers import DIVERGED, Solution

# Reserved for budgets, states and statistics of solves.
_RESERVED = re.compile(
    r"max_iter|tol|(.*_)?(initial_state|equilibrium)(_\d+)?"
    r"|(.*_)?(evaluations|residual|status)"
)
# Keras' names for inputs without a name, in a new model and in a loaded one. They count
# the inputs of the process.
_AUTOMATIC = re.compile(r"(keras_tensor|input_layer)(_\d+)?")


def request_signature(
    model: keras.Model,
    preprocessor: Any = None,
    input_signature: Any = None,
    batch_size: int | None = None,
) -> Any:
    """Returns the nest of `tf.TensorSpec`s of the inputs of a request.

    Args:
        model: A built `keras.Model`.
        preprocessor: Optional function whose attribute `input_signature`, if it has
            one, replaces the inputs of the model.
        input_signature: Optional nest of `tf.TensorSpec`s; overrides both.
        batch_size: Positive integer, or `None` for any.
    """
    if input_signature is None and preprocessor is not None:
        input_signature = getattr(preprocessor, "input_signature", None)
    elif input_signature is None:
        inputs: Any = getattr(model, "input", None)
        if inputs is None:  # A sequential model has only a list of its one input.
            inputs = getattr(model, "inputs", None)
        is_single = isinstance(inputs, list) and len(inputs) == 1
        input_signature = inputs[0] if is_single else inputs
    if input_signature is None:
        raise ValueError(
            "Give `input_signature`, a nest of `tf.TensorSpec`s with an open batch "
            "axis: neither this model nor its preprocessor defines its inputs. "
            f"Received: {type(model).__name__} {model.name!r}, input_signature=None."
        )

    fixed = {leaf.shape[0] for leaf in tree.flatten(input_signature) if leaf.shape}
    if batch_size is None and fixed - {None}:
        raise ValueError(
            "An export accepts any number of samples, but the model has inputs with a "
            "fixed batch size. Give `input_signature`, a nest of `tf.TensorSpec`s with "
            "an open batch axis, or, for LiteRT, `batch_size`. Received: batch sizes "
            f"{sorted(map(str, fixed))}."
        )

    def spec(leaf: Any) -> tf.TensorSpec:
        shape = leaf.shape if batch_size is None else (batch_size, *leaf.shape[1:])
        dtype = keras.backend.standardize_dtype(leaf.dtype)
        return tf.TensorSpec(shape, dtype, name=getattr(leaf, "name", None))

    return tree.map_structure(spec, input_signature)


def input_specs(signature: Any) -> dict[str, tf.TensorSpec]:
    """Returns the `tf.TensorSpec`s of a signature by name, in the order of its leaves.

    An input in a dict has the name of its key; nested keys are joined with `_`. Others
    have their own name. Without a name, a single one is `inputs`, and several are
    `inputs_0`, `inputs_1`, ... TensorFlow allows only ASCII letters, digits and `_` in
    names of arguments; other characters become `_`.
    """
    leaves, names = tree.flatten_with_path(signature), []
    for path, spec in leaves:
        name = _path_name("inputs", path)
        if spec.name and not any(isinstance(key, str) for key in path):
            name = name if _AUTOMATIC.fullmatch(spec.name) else spec.name
        name = _ascii(name)
        # TensorFlow also renames arguments whose first character is `_`.
        is_valid = name.isidentifier() and not keyword.iskeyword(name)
        names.append(name if is_valid and name[0] != "_" else f"inputs_{name}")
    _check_names("inputs", names)
    return {
        name: tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for name, (_, spec) in zip(names, leaves, strict=True)
    }


def _ascii(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _path_name(kind: str, path: tuple) -> str:
    is_keyed = bool(path) and isinstance(path[0], str)
    return "_".join(map(str, path if is_keyed else (kind, *path)))


def name_outputs(outputs: Any) -> dict[str, tf.Tensor]:
    """Returns outputs by name, in their order: `outputs` for a single one, the keys of
    dicts, joined with `_`, or `outputs_0`, `outputs_1`, ..."""
    leaves = [(_path_name("outputs", path), leaf) for path, leaf in _leaves(outputs)]
    _check_names("outputs", [name for name, _ in leaves])
    return {name: _widen(leaf) for name, leaf in leaves}


def _leaves(nest: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Yields paths and leaves. Unlike `tree.flatten`, keeps the order of dicts."""
    items: Any
    if isinstance(nest, dict):
        items = nest.items()
    elif isinstance(nest, list | tuple):
        items = enumerate(nest)
    else:
        yield path, nest
        return
    for key, value in items:
        yield from _leaves(value, (*path, key))


class SolveOutputs:
    """Names the tensors that equilibrium layers add to requests and responses.

    One layer adds `evaluations`, `residual`, `status`, `equilibrium` and the input
    `initial_state`. With several layers, each name starts with its layer:
    `LAYER_evaluations`. The tensors of a nested state are `equilibrium_0`,
    `equilibrium_1`, ...

    Args:
        solutions: Dict of names to `deq_keras.solvers.Solution`s, as collected by a
            `deq_keras.layers.SolveScope`; may be empty.
    """

    def __init__(self, solutions: dict[str, Solution]) -> None:
        self.solutions = solutions
        if len(set(map(_ascii, solutions))) < len(solutions):
            raise ValueError(
                "The names of equilibrium layers must differ in ASCII letters or "
                f"digits. Rename some. Received: layers named {list(solutions)}."
            )

    def __len__(self) -> int:
        return len(self.solutions)

    def statuses(self) -> dict[str, tf.Tensor]:
        """Returns the status of each solve, `(batch,)`."""
        statistics = self.statistics().items()
        return {name: x for name, x in statistics if name.endswith("status")}

    def statistics(self) -> dict[str, tf.Tensor]:
        """Returns evaluations, residual and status of each solve, `(batch,)` each."""
        return {
            self._prefix(name) + key: tensor
            for name, solution in self.solutions.items()
            for key, tensor in (
                ("evaluations", solution.num_evaluations),
                ("residual", solution.residual),
                ("status", solution.status),
            )
        }

    def failures(self) -> tf.Tensor | None:
        """Returns a mask `(batch,)` of samples with a diverged solve, or `None` without
        an equilibrium layer."""
        failed = [
            tf.equal(solution.status, DIVERGED) for solution in self.solutions.values()
        ]
        return tf.reduce_any(tf.stack(failed), axis=0) if failed else None

    def equilibria(self, kind: str = "equilibrium") -> dict[str, tf.Tensor]:
        """Returns the equilibria by name.

        Args:
            kind: `"equilibrium"`, the name in responses, or `"initial_state"`, the name
                in the next request.
        """
        leaves = self._leaves(kind).values()
        return {name: _widen(leaf) for one in leaves for name, leaf in one.items()}

    def specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the `tf.TensorSpec`s of the initial states in a request."""
        return {
            name: tf.TensorSpec(leaf.shape, _wide_dtype(leaf.dtype), name=name)
            for leaves in self._leaves("initial_state").values()
            for name, leaf in leaves.items()
        }

    def states(self, request: dict[str, tf.Tensor]) -> dict[str, Any]:
        """Returns the initial states of a request by layer.

        Args:
            request: Dict of tensors, with all initial states or without any.
        """
        states = {}
        for layer, leaves in self._leaves("initial_state").items():
            if leaves.keys() <= request.keys():
                values = [request[name] for name in leaves]
                structure = self.solutions[layer].value
                states[layer] = tree.pack_sequence_as(structure, values)
        return states

    def _leaves(self, kind: str) -> dict[str, dict[str, tf.Tensor]]:
        """Returns the tensors of the equilibria by layer and name."""
        leaves = {}
        for layer, solution in self.solutions.items():
            tensors, name = tree.flatten(solution.value), self._prefix(layer) + kind
            names = [f"{name}_{i}" for i in range(len(tensors))]
            names = [name] if len(tensors) == 1 else names
            leaves[layer] = dict(zip(names, tensors, strict=True))
        return leaves

    def _prefix(self, layer: str) -> str:
        return "" if len(self.solutions) == 1 else f"{_ascii(layer)}_"


def is_initial_state(name: str) -> bool:
    """Returns whether a name is one of `SolveOutputs.specs`."""
    return bool(re.fullmatch(r"(.*_)?initial_state(_\d+)?", name))


def _wide_dtype(dtype: tf.DType) -> tf.DType:
    # Few clients support half precision.
    return tf.float32 if dtype in (tf.bfloat16, tf.float16) else dtype


def _widen(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, _wide_dtype(tensor.dtype))


def _check_names(kind: str, names: list[str]) -> None:
    reserved = [name for name in names if _RESERVED.fullmatch(name)]
    if reserved or len(set(names)) != len(names):
        raise ValueError(
            f"The {kind} of an exported model must have unique names. `tol`, `status` "
            "and other names of requests and statistics of a solve are reserved. "
            f"Rename some. Received: {kind} named {names}."
        )
