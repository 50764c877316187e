"""A function that is differentiated where no sample failed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import tensorflow as tf
from keras import tree

from deq_keras.custom_gradient import custom_gradient
from deq_keras.faults.bound_function import BoundFunction
from deq_keras.faults.policy import finite_rows, without_gradient
from deq_keras.row_function import RowFunction
from deq_keras.splitting import SplitFunction, Splitting
from deq_keras.structure import Nest, where_rows

Run: TypeAlias = Callable[[BoundFunction, Nest, Nest], tuple[Nest, tf.Tensor, Any]]


class SampleFunction:
    """A function `(state, injection) -> state`, and what keeps its samples apart.

    Args:
        fn: The function. It may have an attribute `variables`, the Keras variables that
            it reads. Through others, and through tensors that it captures, a failing
            sample can spoil gradients where the solver's own iterations are
            differentiated. It may have a method `splitting` from an injection to the
            `Splitting` of the function, or to `None`.
        has_rows: Nest of Booleans like the injection: which leaves have a row for each
            sample. `None`, for all or for a leaf, takes those whose first axis is as
            long as the batch, as far as their rows are not finite.
        may_leave: Boolean. Whether a solver may leave out samples that are done, for
            which `has_rows` must be known.
    """

    def __init__(
        self,
        fn: Callable[[Nest, Nest], Nest],
        has_rows: Nest | None = None,
        may_leave: bool = False,
    ) -> None:
        self.fn = fn
        self.has_rows = has_rows
        self.may_leave = may_leave

    @classmethod
    def of(cls, fn: Callable[[Nest, Nest], Nest]) -> SampleFunction:
        """Returns `fn` if it is a `SampleFunction`, else one of it."""
        return fn if isinstance(fn, cls) else cls(fn)

    def __call__(self, state: Nest, injection: Nest) -> Nest:
        return self.fn(state, injection)

    def of_states(
        self, injection: Nest, fn: Callable[[Nest, Nest], Nest] | None = None
    ) -> Callable[[Nest], Nest]:
        """Returns the function of a state alone, which a solver takes.

        Args:
            injection: Nest of tensors.
            fn: What evaluates it, a `BoundFunction`. `None`: this one.
        """
        if self.may_leave:
            return RowFunction(fn or self, injection, self.rows_of)

        def of_state(state: Nest) -> Nest:
            return (fn or self)(state, injection)

        splitting = self.splitting(injection)
        return SplitFunction(of_state, splitting) if splitting else of_state

    def splitting(self, injection: Nest) -> Splitting | None:
        """Returns the parts of the function of a state alone, if it can be split.

        They are made of the injection: those of other weights are those of another.

        Args:
            injection: Nest of tensors.
        """
        split = getattr(self.fn, "splitting", None)
        return None if split is None else split(injection)

    @property
    def knows_rows(self) -> bool:
        """Whether it is known of every leaf of the injection."""
        return self.has_rows is not None and None not in tree.flatten(self.has_rows)

    def rows_of(self, injection: Nest, indices: tf.Tensor) -> Nest:
        """Returns the injection of some samples; `knows_rows` must hold.

        Args:
            injection: Nest of tensors.
            indices: Integer tensor `(samples,)`.
        """
        return tree.map_structure(
            lambda leaf, has_rows: tf.gather(leaf, indices) if has_rows else leaf,
            injection,
            self.has_rows,
        )

    def without_failed(
        self, failed: tf.Tensor, state: Nest, injection: Nest
    ) -> tuple[Nest, Nest]:
        """Returns state and injection with another sample's rows for those that failed.

        Args:
            failed: Boolean tensor `(batch,)`.
            state: Nest of `(batch, ...)` tensors.
            injection: Nest of tensors.
        """
        leaves = tree.flatten(injection)
        has_rows: list[bool | None] = [None] * len(leaves)
        if self.has_rows is not None:
            has_rows = tree.flatten(self.has_rows)
        leaves, state = tf.cond(
            tf.reduce_any(failed),
            lambda: _without_rows(failed, state, leaves, has_rows),
            lambda: (leaves, state),
        )
        return state, tree.pack_sequence_as(injection, leaves)

    def differentiable(
        self,
        run: Run,
        state: Nest,
        injection: Nest,
    ) -> tuple[Nest, Any]:
        """Runs something, with a gradient that failing samples do not touch.

        Costs a flag where no sample fails. Where one does, `run` is repeated without
        it, and only the repetition is differentiated.

        Args:
            run: Function of a `BoundFunction`, this one, a state and an injection.
                Returns `(value, failed, result)`: a nest of finite `(batch, ...)`
                tensors, a Boolean tensor `(batch,)`, and anything else.
            state: Nest of `(batch, ...)` tensors.
            injection: Nest of tensors.

        Returns:
            The value, constant for samples that failed, and the result.
        """
        # Before the cast to the compute dtype, which is the reading layer's. Keras has
        # no public name for the tensor of a variable in its own dtype.
        variables = getattr(self.fn, "variables", ())
        weights = [tf.convert_to_tensor(variable._value) for variable in variables]
        sources = (state, injection, weights)
        switch = _GradientSwitch()
        value, failed, result = self._run(run, switch.pass_through(sources))
        switch.is_off = tf.reduce_any(failed)
        repeated = functools.partial(self._repeated, run, failed)
        return _Rerouting(failed, repeated, sources).of(value), result

    def _repeated(
        self,
        run: Run,
        failed: tf.Tensor,
        sources: tuple[Nest, Nest, list[tf.Tensor]],
    ) -> Nest:
        state, injection, weights = sources
        state, injection = self.without_failed(failed, state, injection)
        value, *_ = self._run(run, (state, injection, weights))
        return value

    def _run(
        self, run: Run, sources: tuple[Nest, Nest, list[tf.Tensor]]
    ) -> tuple[Nest, tf.Tensor, Any]:
        state, injection, weights = sources
        return run(BoundFunction(self.fn, weights), state, injection)


class _GradientSwitch:
    """Lets gradients pass until it is switched off by a tensor, which may be known
    only after the tensors have been used."""

    is_off: tf.Tensor = None

    def pass_through(self, nest: Nest) -> Nest:
        return tree.map_structure(
            lambda tensor: (
                custom_gradient(self._forward)(tensor)
                if tensor.dtype.is_floating
                else tensor
            ),
            nest,
        )

    def _forward(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return tf.identity(tensor), self._backward

    def _backward(self, gradient: tf.Tensor) -> tf.Tensor:
        gradient = tf.convert_to_tensor(gradient)
        return tf.cond(self.is_off, lambda: tf.zeros_like(gradient), lambda: gradient)


class _Rerouting:
    """Leads the gradient of a value, if samples failed, through its repetition.

    Args:
        failed: Boolean tensor `(batch,)`.
        repeated: Function from nests like `sources` to a nest like the value, which
            samples that failed leave alone.
        sources: Nest of tensors that the value was computed of.
    """

    def __init__(
        self, failed: tf.Tensor, repeated: Callable[[Nest], Nest], sources: Nest
    ) -> None:
        self.failed = failed
        self.repeated = repeated
        self.sources = sources
        self.any_failed = tf.reduce_any(failed)
        self.all_failed = tf.reduce_all(failed)

    def of(self, value: Nest) -> Nest:
        """Returns the value with that gradient."""
        sources, leaves = tree.flatten(self.sources), tree.flatten(value)
        leaves = custom_gradient(self._forward)(*sources, *leaves)
        return tree.pack_sequence_as(value, list(leaves))

    def _forward(self, *leaves: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
        num_sources = len(tree.flatten(self.sources))
        value = [tf.identity(leaf) for leaf in leaves[num_sources:]]
        return value, functools.partial(self._backward, leaves[:num_sources])

    def _backward(
        self, sources: tuple[tf.Tensor, ...], *cotangent: tf.Tensor
    ) -> list[tf.Tensor | None]:
        passed = [tf.convert_to_tensor(leaf) for leaf in cotangent]
        gradients, passed = tf.cond(
            self.any_failed & ~self.all_failed,
            lambda: (
                self._gradients_of_repeated(sources, passed),
                tree.map_structure(tf.zeros_like, passed),
            ),
            lambda: (tree.map_structure(tf.zeros_like, _floating(sources)), passed),
        )
        gradients = iter(gradients)
        of_sources = [
            next(gradients) if leaf.dtype.is_floating else None for leaf in sources
        ]
        return of_sources + passed

    def _gradients_of_repeated(
        self, sources: tuple[tf.Tensor, ...], cotangent: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        watched = _floating(sources)
        with tf.GradientTape() as tape:
            tape.watch(watched)
            value = self.repeated(tree.pack_sequence_as(self.sources, list(sources)))
        cotangent = without_gradient(self.failed, cotangent)
        gradients = tape.gradient(tree.flatten(value), watched, cotangent, "zero")
        # Who gathers samples gives slices, and the other branch whole tensors.
        return [tf.convert_to_tensor(gradient) for gradient in gradients]


def _floating(tensors: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    return [tensor for tensor in tensors if tensor.dtype.is_floating]


def _with_row(tensor: tf.Tensor, index: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    row = tf.stop_gradient(tf.gather(tensor, [index]))  # (1, ...)
    return where_rows(mask, row, tensor)


def _without_rows(
    failed: tf.Tensor,
    state: Nest,
    leaves: list[tf.Tensor],
    has_rows: list[bool | None],
) -> tuple[list[tf.Tensor], Nest]:
    # Those of a sample that did not fail come in their place: f is finite there.
    healthy = tf.argmin(tf.cast(failed, tf.int32))
    leaves = [
        _with_row_if_it_has(leaf, has, healthy, failed)
        for leaf, has in zip(leaves, has_rows, strict=True)
    ]
    return leaves, tree.map_structure(
        lambda leaf: _with_row(leaf, healthy, failed), state
    )


def _with_row_if_it_has(
    leaf: tf.Tensor, has_rows: bool | None, index: tf.Tensor, failed: tf.Tensor
) -> tf.Tensor:
    if has_rows:
        return _with_row(leaf, index, failed)
    may_have = leaf.shape.rank and leaf.shape[:1].is_compatible_with(failed.shape)
    if has_rows is False or not may_have:
        return leaf
    return tf.cond(
        tf.equal(tf.shape(leaf)[0], tf.size(failed)),
        lambda: _with_row(leaf, index, _failed_rows_of(leaf, failed)),
        lambda: leaf,
    )


def _failed_rows_of(leaf: tf.Tensor, failed: tf.Tensor) -> tf.Tensor:
    # A weight, whose length is static, may be as long as the batch.
    is_finite = finite_rows(leaf) if leaf.shape[0] is not None else None
    return failed if is_finite is None else failed & ~is_finite
