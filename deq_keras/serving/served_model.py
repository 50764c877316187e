"""A model as functions of named tensors, which is what an exported file holds."""

import functools

import tensorflow as tf
from keras import tree

from deq_keras.checks import check_optional_count
from deq_keras.layers import SolveScope
from deq_keras.serving.signature import (
    named,
    named_outputs,
    sent_signature,
    with_batch_size,
)
from deq_keras.serving.solutions import NamedSolutions
from deq_keras.serving.variables import check_unchanged
from deq_keras.structure import with_rows_of

BUDGET = {
    "max_iter": tf.TensorSpec((), tf.int64, name="max_iter"),
    "tol": tf.TensorSpec((), tf.float32, name="tol"),
}


class ServedModel:
    """A model as functions of named tensors.

    Args:
        model: A built `keras.Model`.
        input_signature: Nest of `tf.TensorSpec`s: what is sent. `None`: that of the
            preprocessor, or of the model.
        max_iter_limit: Positive integer, the largest budget that is served. `None`: the
            largest `max_iter` of the model's solvers.
        preprocessor: Optional function from what is sent to the inputs of the model.
        postprocessor: Optional function of the model's outputs, of its inputs, and of a
            Boolean tensor `(batch,)`, which samples failed.
        batch_size: Positive integer, or `None` for any.

    Attributes:
        signature: Nest of `tf.TensorSpec`s of what is sent.
        inputs: Dict of the names of what is sent to their `tf.TensorSpec`s.
    """

    def __init__(
        self,
        model,
        input_signature=None,
        max_iter_limit=None,
        preprocessor=None,
        postprocessor=None,
        batch_size=None,
    ):
        self.model = model
        self.preprocessor = preprocessor
        self.postprocessor = postprocessor
        signature = sent_signature(model, preprocessor, input_signature)
        self.signature = with_batch_size(signature, batch_size)
        self.inputs = named(self.signature)
        self._limit = check_optional_count("max_iter_limit", max_iter_limit)

    @functools.cached_property
    def solutions(self):
        """The `NamedSolutions` of a call; empty without an equilibrium."""
        traced = tf.function(self._solved, autograph=False)
        concrete = traced.get_concrete_function(self.inputs)
        return NamedSolutions(concrete.structured_outputs)

    def serve(self):
        """Returns the `tf.function` of the inputs, with the solvers as configured, to
        the outputs and the status of each solve."""

        def answer(request):
            outputs, solutions = self._answer(request)
            return {**outputs, **solutions.statuses()}

        return self._function(self.inputs, answer)

    def serve_with_statistics(self):
        """Returns the `tf.function` of the inputs, a budget and a tolerance, to the
        outputs and what the solves found."""

        def answer(request):
            outputs, solutions = self._answer(request)
            return {**outputs, **solutions.statistics()}

        return self._function({**self.inputs, **BUDGET}, answer)

    def serve_warm(self):
        """Returns that function of states to start from, too, and to equilibria."""
        specs = {**self.inputs, **BUDGET, **self.solutions.specs()}
        return self._function(specs, self.answer)

    def answer(self, request):
        """Returns outputs, what the solves found, and equilibria.

        Args:
            request: Dict of tensors: the inputs; optional a budget and a tolerance, and
                states to start from.
        """
        outputs, solutions = self._answer(request)
        return {**outputs, **solutions.statistics(), **solutions.equilibria()}

    def whole(self, warm_start):
        """Returns the one function of a file that has no other.

        Args:
            warm_start: Boolean. Whether it takes states to start from.
        """
        if not len(self.solutions):
            return self.serve()
        return self.serve_warm() if warm_start else self.serve_with_statistics()

    def states(self, samples):
        """Returns the states that a short solve of samples ends in, a dict of arrays by
        the names of states to start from.

        Args:
            samples: Dict of arrays.
        """
        request = {name: tf.constant(samples[name]) for name in self.inputs}
        return NamedSolutions(self._solved(request, max_iter=2)).initial_states()

    def _solved(self, request, max_iter=0):
        # With 0, each solver keeps its own budget as a static number; see `max_iter`.
        with SolveScope(max_iter) as scope:
            self.model(self._model_inputs(request), training=False)
        return scope.solutions

    def _answer(self, request):
        """Returns the outputs by name, and the `NamedSolutions`."""
        request = _with_equal_rows(request, request[next(iter(self.inputs))])
        inputs = self._model_inputs(request)
        with self._scope(request) as scope:
            outputs = self.model(inputs, training=False)
        solutions = NamedSolutions(scope.solutions)
        if self.postprocessor is not None:
            outputs = self.postprocessor(outputs, inputs, solutions.failed())
        return named_outputs(outputs), solutions

    def _model_inputs(self, request):
        leaves = [request[name] for name in self.inputs]
        inputs = tree.pack_sequence_as(self.signature, leaves)
        return inputs if self.preprocessor is None else self.preprocessor(inputs)

    def _scope(self, request):
        return SolveScope(
            request.get("max_iter"),
            request.get("tol"),
            self.solutions.states(request),
            self._limit or self.solutions.max_iter,
        )

    def _function(self, specs, answer):
        @tf.function(input_signature=list(specs.values()), autograph=False)
        def function(*tensors):
            return answer(dict(zip(specs, tensors, strict=True)))

        check_unchanged(function.get_concrete_function())
        return function


def _with_equal_rows(request, first):
    if not first.shape.rank:
        return request
    return {
        name: with_rows_of(first, tensor) if tensor.shape.rank else tensor
        for name, tensor in request.items()
    }
