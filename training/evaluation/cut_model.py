"""A model cut open at its equilibrium layer."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

import deq_keras
from deq_keras.solvers import SolveRequest

from ..errors import InputError


class CutModel(NamedTuple):
    """What is before, in and after the equilibrium.

    Attributes:
        encode: model from pixels to the inputs of the layer.
        layer: the `DEQ` layer.
        classify: model from an equilibrium to logits.
    """

    encode: Any
    layer: Any
    classify: Any

    def answers(self):
        """Returns the function of inputs and a budget to the outputs, and to a dict of
        `evaluations`, `residual` and `converged` of each sample."""

        # One trace serves all budgets: they are tensors.
        @tf.function(reduce_retracing=True)
        def answer(inputs, budget):
            solution = self.layer.solve(
                self.encode(inputs), SolveRequest(max_iter=budget)
            )
            return self.classify(solution.value), {
                "evaluations": solution.num_evaluations,
                "residual": solution.residual,
                "converged": tf.equal(solution.status, deq_keras.solvers.CONVERGED),
            }

        return lambda inputs, budget: answer(inputs, tf.constant(budget))


def cut(model):
    """Returns the `CutModel` of a functional model; they share its weights."""
    layer = equilibrium_layer(model)
    return CutModel(
        encode=keras.Model(model.inputs[0], layer.input, name="encode"),
        layer=layer,
        classify=keras.Model(layer.output, model.outputs[0], name="classify"),
    )


def cut_reasoner(model):
    """Returns the `CutModel` of a `ReasonerTagger`; they share its weights."""

    def encode(inputs, training=False):
        del training
        return model.backbone.encode(inputs)

    return CutModel(encode, model.backbone.deq, model.head)


def equilibrium_layer(model):
    """Returns the one `DEQ` layer of a model."""
    layers = [
        layer for layer in model.layers if isinstance(layer, deq_keras.layers.DEQ)
    ]
    if len(layers) != 1:
        raise InputError(
            f"The model must have exactly one DEQ layer. Received: {len(layers)}."
        )
    return layers[0]
