"""Models that iterate a single cell, split into their components."""

from collections.abc import Callable

import tensorflow as tf
from keras import tree

from deq_keras.core.structure import Nest


class WeightTiedModel:
    """A model that iterates a single cell, split into its components.

    ```
    u = inject(encoder(inputs)),  z_0 = initial_state(u),  z_{t+1} = cell(z_t, u)
    answer = argmax(head(z_T))
    ```

    Diagnostics of predictions accept this form of a `DEQ` or of any other weight-tied
    model, regardless of its training.

    Args:
        cell: A built cell, such as the `cell` of a `DEQ`: an `EquilibriumCell`, a
            functional model of `[state, injection]`, or any layer or function of
            `(state, injection)`.
        encoder: Function from inputs to the inputs of the cell. Defaults to `None`,
            the identity.
        head: Function from a state to scores `(batch, ..., classes)`. Defaults to
            `None`, the identity.
        initial_state: Function from an injection to the initial state. Defaults to
            `None`: the initial state of the cell if it defines one, otherwise zeros
            like the injection.

    Example:

    >>> model = deq_keras.diagnostics.WeightTiedModel(lambda z, u: 0.5 * z + u)
    >>> injection = model.inject(np.array([[1.0, 3.0]], "float32"))
    >>> state = model.step(model.initial_state(injection), injection)
    >>> int(model.answer(state)[0])
    1
    """

    def __init__(
        self,
        cell: Callable[..., Nest],
        encoder: Callable[[Nest], Nest] | None = None,
        head: Callable[[Nest], tf.Tensor] | None = None,
        initial_state: Callable[[Nest], Nest] | None = None,
    ) -> None:
        given = {"encoder": encoder, "head": head, "initial_state": initial_state}
        for name, function in {"cell": cell, **given}.items():
            if not callable(function) and (function is not None or name == "cell"):
                raise ValueError(
                    f"`{name}` must be a function or a layer. Received: "
                    f"{name}={function!r}."
                )
        self.cell = cell
        self.encoder = encoder
        self.head = head
        self._initial_state = initial_state or getattr(cell, "initial_state", None)

    def inject(self, inputs: Nest) -> Nest:
        """Returns the injection of inputs, which is constant over all evaluations.

        Args:
            inputs: Inputs of the encoder.
        """
        encoded = inputs if self.encoder is None else self.encoder(inputs)
        encoded = tree.map_structure(self._cast, encoded)
        return self.cell.inject(encoded) if hasattr(self.cell, "inject") else encoded

    def initial_state(self, injection: Nest) -> Nest:
        """Returns the initial state.

        Args:
            injection: Result of `inject`.
        """
        if self._initial_state is None:
            return tree.map_structure(tf.zeros_like, injection)
        return self._initial_state(injection)

    def step(self, state: Nest, injection: Nest) -> Nest:
        """Applies the cell once.

        Args:
            state: Nest of tensors `(batch, ...)`.
            injection: Result of `inject`.
        """
        if len(getattr(self.cell, "inputs", None) or ()) == 2:  # A functional model.
            return self.cell([state, injection])
        return self.cell(state, injection)

    def scores(self, state: Nest) -> tf.Tensor:
        """Returns the scores of all classes, `(batch, ..., classes)`.

        Args:
            state: Nest of tensors `(batch, ...)`.
        """
        return state if self.head is None else self.head(state)

    def answer(self, state: Nest) -> tf.Tensor:
        """Returns the classes with the highest scores, int32 `(batch, ...)`.

        Args:
            state: Nest of tensors `(batch, ...)`.
        """
        return tf.argmax(self.scores(state), axis=-1, output_type=tf.int32)

    def _cast(self, tensor: Nest) -> tf.Tensor:
        # A layer around the cell casts its inputs the same way.
        tensor = tf.convert_to_tensor(tensor)
        dtype = getattr(self.cell, "compute_dtype", None)
        is_other = dtype is not None and tensor.dtype.is_floating
        return tf.cast(tensor, dtype) if is_other else tensor
