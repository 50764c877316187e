"""What happens to a sample that is not finite: here, and nowhere else.

* A sample with a non-finite input is set aside: it gets the state that it starts from.
* A sample for which f turns non-finite keeps its best finite iterate.
* Neither changes the others, and neither has a gradient, where 0 * NaN would be NaN:
  f is differentiated at the numbers of a sample that did not fail.
* Where all samples fail, the weights are to blame, and the output is NaN: a finite one
  would hide that from the loss.
"""

import keras
import tensorflow as tf
from keras import tree

from deq_keras.structure import finite_rows, where_rows


class SampleFunction:
    """A function `(state, injection) -> state`, and what keeps its samples apart.

    Args:
        fn: the function.
        variables: the Keras variables that it reads. Through others, and through
            tensors that it captures, a failing sample can spoil gradients where the
            solver's own iterations are differentiated.
        has_rows: nest of bools like the injection: which leaves have a row for each
            sample. `None` takes those whose first axis is as long as the batch, as far
            as their rows are not finite.
    """

    def __init__(self, fn, variables=(), has_rows=None):
        self.fn = fn
        self.variables = tuple(variables)
        self.has_rows = has_rows

    @classmethod
    def of(cls, fn):
        """Returns `fn` if it is a `SampleFunction`, else one of it."""
        return fn if isinstance(fn, cls) else cls(fn)

    def __call__(self, state, injection):
        return self.fn(state, injection)

    def without_failed(self, has_failed, state, injection):
        """Returns state and injection with another sample's rows for those that failed.

        Args:
            has_failed: bool tensor `(batch,)`.
            state: nest of `(batch, ...)` tensors.
            injection: nest of tensors.
        """
        leaves = tree.flatten(injection)
        indices = self._indices_with_rows(leaves, has_failed)

        def replaced():
            # By those of a sample that did not fail: f is finite there.
            healthy = tf.argmin(tf.cast(has_failed, tf.int32))
            of_injection = [
                _with_row(leaves[i], healthy, self._failed_rows(leaves[i], has_failed))
                for i in indices
            ]
            return of_injection, tree.map_structure(
                lambda leaf: _with_row(leaf, healthy, has_failed), state
            )

        of_injection, state = tf.cond(
            tf.reduce_any(has_failed),
            replaced,
            lambda: ([leaves[i] for i in indices], state),
        )
        for i, leaf in zip(indices, of_injection, strict=True):
            leaves[i] = leaf
        return state, tree.pack_sequence_as(injection, leaves)

    def _indices_with_rows(self, leaves, has_failed):
        has_rows = [
            bool(leaf.shape.rank) and leaf.shape[0] == has_failed.shape[0]
            for leaf in leaves
        ]
        if self.has_rows is not None:
            has_rows = tree.flatten(self.has_rows)
        return [i for i, has in enumerate(has_rows) if has]

    def _failed_rows(self, leaf, has_failed):
        if self.has_rows is not None or leaf.shape[0] is None:
            return has_failed
        # A weight may happen to have as many rows as the batch has samples.
        is_finite = finite_rows(leaf)
        return has_failed if is_finite is None else has_failed & ~is_finite

    def differentiable(self, run, state, injection):
        """Runs something, with a gradient that failing samples do not touch.

        Costs a flag where no sample fails. Where one does, `run` is repeated without
        it, and only the repetition is differentiated.

        Args:
            run: function of a state and an injection that calls this function. Returns
                `(value, has_failed, result)`: a nest of finite `(batch, ...)` tensors,
                a bool tensor `(batch,)`, and anything else.
            state: nest of `(batch, ...)` tensors.
            injection: nest of tensors.

        Returns:
            The value, constant for samples that failed, and the result.
        """
        # Before the cast to the compute dtype, which is the reading layer's.
        weights = [tf.convert_to_tensor(v._value) for v in self.variables]
        sources = (state, injection, weights)
        switch = _GradientSwitch()
        value, has_failed, result = self._run(run, switch.pass_through(sources))
        switch.is_off = tf.reduce_any(has_failed)

        def repeated(state, injection, weights):
            state, injection = self.without_failed(has_failed, state, injection)
            again, *_ = self._run(run, (state, injection, weights))
            return again

        return _rerouted(value, has_failed, repeated, sources), result

    def _run(self, run, sources):
        state, injection, weights = sources
        pairs = list(zip(self.variables, weights, strict=True))
        with keras.StatelessScope(pairs):
            return run(state, injection)


class _GradientSwitch:
    """Lets gradients pass until it is switched off by a tensor, which may be known
    only after the tensors have been used."""

    def __init__(self):
        self.is_off = None

    def pass_through(self, nest):
        return tree.map_structure(self._hook, nest)

    def _hook(self, tensor):
        @tf.custom_gradient
        def hook(tensor):
            def backward(gradient):
                gradient = tf.convert_to_tensor(gradient)
                return tf.cond(
                    self.is_off, lambda: tf.zeros_like(gradient), lambda: gradient
                )

            return tf.identity(tensor), backward

        return hook(tensor) if tensor.dtype.is_floating else tensor


def _rerouted(value, has_failed, repeated, sources):
    """Returns `value`; if samples failed, its gradient is that of `repeated(*sources)`,
    a nest like it, for the others."""
    num_sources = len(tree.flatten(sources))
    any_failed, all_failed = tf.reduce_any(has_failed), tf.reduce_all(has_failed)

    @tf.custom_gradient
    def attach(*leaves):
        origin = tree.pack_sequence_as(sources, list(leaves[:num_sources]))
        floating = [x for x in tree.flatten(origin) if x.dtype.is_floating]

        def of_repeated(cotangent):
            with tf.GradientTape() as tape:
                tape.watch(floating)
                again = tree.flatten(repeated(*origin))
            cotangent = any_rows(has_failed, 0.0, cotangent)
            return tape.gradient(again, floating, cotangent, "zero")

        def backward(*cotangent):
            cotangent = [tf.convert_to_tensor(leaf) for leaf in cotangent]
            gradients, passed = tf.cond(
                any_failed & ~all_failed,
                lambda: (
                    of_repeated(cotangent),
                    tree.map_structure(tf.zeros_like, cotangent),
                ),
                lambda: (tree.map_structure(tf.zeros_like, floating), cotangent),
            )
            gradients = iter(gradients)
            of_sources = [
                next(gradients) if leaf.dtype.is_floating else None
                for leaf in leaves[:num_sources]
            ]
            return of_sources + passed

        return [tf.identity(x) for x in leaves[num_sources:]], backward

    leaves = attach(*tree.flatten(sources), *tree.flatten(value))
    return tree.pack_sequence_as(value, list(leaves))


def set_aside(inputs):
    """Zeroes the samples with non-finite inputs.

    Args:
        inputs: nest of `(batch, ...)` tensors.

    Returns:
        The inputs, and which samples are usable: a bool tensor `(batch,)`, or `None`
        where no input is floating-point.
    """
    is_usable = finite_rows(inputs)
    if is_usable is None:
        return inputs, None
    return any_rows(~is_usable, 0.0, inputs), is_usable


def reported(solution, start, is_usable, diverged):
    """Returns a `Solution` in which samples that were set aside are at their start.

    Args:
        solution: the `Solution`.
        start: nest like its value.
        is_usable: what `set_aside` returned.
        diverged: int. The status of a failed sample.
    """
    if is_usable is None:
        return solution
    infinite = tf.constant(float("inf"), solution.residual.dtype)
    return solution._replace(
        value=any_rows(~is_usable, start, solution.value),
        point=any_rows(~is_usable, start, solution.point),
        residual=tf.where(is_usable, solution.residual, infinite),
        status=tf.where(is_usable, solution.status, diverged),
    )


def output(value, start, is_usable, solution):
    """Returns what a layer gives out: `value`, but for samples that failed.

    Args:
        value: nest of `(batch, ...)` tensors.
        start: nest like it, for samples that were set aside.
        is_usable: what `set_aside` returned.
        solution: the `Solution` that `reported` returned.
    """
    if is_usable is not None:
        value = any_rows(~is_usable, start, value)
    return tf.cond(
        tf.reduce_all(has_no_evaluation(solution)),
        lambda: tree.map_structure(
            lambda leaf: leaf * tf.constant(float("nan"), leaf.dtype), value
        ),
        lambda: value,
    )


def _with_row(tensor, index, mask):
    row = tf.stop_gradient(tf.gather(tensor, [index]))  # (1, ...)
    return where_rows(mask, row, tensor)


def has_no_evaluation(solution):
    """Tells of which samples of a `Solution` no evaluation was finite."""
    return tf.math.is_inf(solution.residual)


def any_rows(mask, chosen, otherwise):
    """`where_rows`, which passes `otherwise` by reference where the mask is empty."""
    return tf.cond(
        tf.reduce_any(mask),
        lambda: where_rows(mask, chosen, otherwise),
        lambda: otherwise,
    )
