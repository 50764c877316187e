"""A model that solves every sample from several states, and chooses an answer."""

import keras
from keras import tree

from deq_keras.checks import check_count, check_integer
from deq_keras.layers import SolveScope
from deq_keras.restarts import Selection, chosen_rows, repeat_rows
from deq_keras.serving.served_model import ServedModel
from deq_keras.structure import with_rows_of


@keras.saving.register_keras_serializable(package="deq_keras")
class RestartsModel(keras.Model):
    """A model that solves every sample from several states, and chooses an answer.

    The whole model sees a batch that has every sample `restarts` times: what its layers
    before and after the equilibrium compute is repeated, too, so that what it answers
    can be compared. The first restart is what `model` does; the others begin at draws,
    the same for all samples (see `DEQ.solve`), so that an answer depends neither on the
    batch nor on a sample's place in it. The memory is that of so large a batch. For
    inference only.

    Args:
        model: A built functional `keras.Model` that calls one equilibrium layer, once.
        restarts: Positive integer. Defaults to `8`.
        select: `"residual"`, `"vote"` or a function; see
            `deq_keras.restarts.Selection`. Defaults to `"residual"`.
        answer: Optional function from the outputs of `model` to what is read off them,
            a nest of integer or Boolean tensors `(batch, ...)`, for example the
            `argmax` of logits. `"vote"` needs it, and agreement is then about it; see
            `Selection`. Functions are saved with the model if they are registered with
            Keras.
        seed: Integer. The draws follow from it. Defaults to `0`.
        **kwargs: `name` of the model.

    Call arguments:
        inputs: As `model` takes them.

    Returns:
        Dict of `outputs`, those of `model` for the chosen restarts, and of tensors
        `(batch,)`: `evaluations`, `residual`, `status`, `restart`, `agreement`,
        `spread` and `total_evaluations`; see `deq_keras.restarts.SelectedSolution`.

    Raises:
        ValueError: If `model` calls no equilibrium layer, or several times one.

    Example:

    >>> deq = deq_keras.layers.DEQ(deq_keras.layers.DenseCell(4))
    >>> model = keras.Sequential([keras.Input((3,)), deq, keras.layers.Dense(2)])
    >>> searching = deq_keras.serving.RestartsModel(
    ...     model, restarts=4, select="vote", answer=lambda y: tf.argmax(y, axis=-1)
    ... )
    >>> found = searching.predict(np.ones((2, 3), "float32"), verbose=0)
    >>> found["outputs"].shape, found["agreement"]
    ((2, 2), array([1., 1.], dtype=float32))
    """

    def __init__(
        self, model, restarts=8, select="residual", answer=None, seed=0, **kwargs
    ):
        super().__init__(**kwargs)
        self.restarts = check_count("restarts", restarts)
        self.selection = Selection(select, answer)
        self.seed = check_integer("seed", seed)
        self.model = model
        solved = list(ServedModel(model).solutions.solutions)
        if len(solved) != 1:
            raise ValueError(
                "Restarts are chosen by one equilibrium. Expected: a model that calls "
                f"one equilibrium layer, once. Received: the model {model.name!r}, "
                f"which solves {solved}."
            )

    def call(self, inputs):
        first, *_ = tree.flatten(inputs)
        inputs = tree.map_structure(lambda leaf: with_rows_of(first, leaf), inputs)
        repeated = repeat_rows(inputs, self.restarts)
        with SolveScope(restarts=self.restarts, seed=self.seed) as scope:
            outputs = self.model(repeated, training=False)
        (solution,) = scope.solutions.values()
        selected = self.selection(solution, self.restarts, outputs)
        return {
            "outputs": chosen_rows(outputs, selected.restart),
            "evaluations": selected.num_evaluations,
            "residual": selected.residual,
            "status": selected.status,
            "restart": selected.restart,
            "agreement": selected.agreement,
            "spread": selected.spread,
            "total_evaluations": selected.total_evaluations,
        }

    def get_config(self):
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self.model),
            "restarts": self.restarts,
            "select": keras.saving.serialize_keras_object(self.selection.select),
            "answer": keras.saving.serialize_keras_object(self.selection.answer),
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        objects = ("model", "select", "answer")
        found = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in objects
        }
        return cls(**{**config, **found})
