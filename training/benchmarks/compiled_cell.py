"""A cell's function f and its derivatives as compiled calls, to be timed."""

import functools

import tensorflow as tf


class CompiledCell:
    """f of a workload at a fixed point, compiled: the unit of all ratios.

    The results of the calls are dropped.

    Args:
        workload: a `workloads.Workload`.
        jit_compile: bool. Whether XLA compiles the calls. Defaults to `False`.
    """

    def __init__(self, workload, jit_compile=False):
        self.jit_compile = jit_compile
        self._cell = workload.cell
        self._inputs = workload.injection
        self._injection = workload.cell.inject(self._inputs)  # Once a solve.
        start = workload.cell.initial_state(self._injection)
        self._evaluate = self._compile(self._apply, start, self._injection)
        self._point = start
        for _ in range(5):
            self._point = self._evaluate(self._point, self._injection)
        self._cotangent = tf.nest.map_structure(
            lambda leaf: tf.cast(
                tf.random.stateless_normal(leaf.shape, seed=(1, 2)), leaf.dtype
            ),
            start,
        )

    def evaluate(self):
        """f(z)."""
        self._evaluate(self._point, self._injection)

    def differentiate(self, num_products, with_weights=True):
        """Returns a call of f(z) that is tracked, then products with df/dz.

        The call injects, evaluates f once, takes `num_products` products v <- v^T df/dz
        one after the other, and back-propagates the last v.

        Args:
            num_products: int >= 0.
            with_weights: bool. Whether the last back-propagation ends in z and all
                weights, or in z alone, where it is one product more.

        Returns:
            A function without arguments.
        """
        arguments = self._point, self._inputs, self._cotangent
        differentiate = functools.partial(
            self._differentiate, num_products=num_products, with_weights=with_weights
        )
        return functools.partial(self._compile(differentiate, *arguments), *arguments)

    def ideal_step(self, num_evaluations):
        """Returns a call of the work that a training step by implicit differentiation
        cannot avoid.

        It is `num_evaluations` calls of f, one tracked evaluation, `num_evaluations`
        products with its Jacobian, and one full back-propagation. The derivatives are
        one compiled call without a loop: apart, TensorFlow's compiled derivatives take
        longer and would flatter the training step.

        Args:
            num_evaluations: int. Evaluations of each of the two solves.
        """
        differentiate = self.differentiate(num_evaluations)

        def step():
            for _ in range(num_evaluations):
                self.evaluate()
            differentiate()

        return step

    def _apply(self, state, injection):
        return self._cell(state, injection)

    def _differentiate(self, state, inputs, cotangent, num_products, with_weights):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(state)
            value = self._apply(state, self._cell.inject(inputs))
        for _ in range(num_products):
            cotangent = tape.gradient(value, state, cotangent)
        weights = self._cell.trainable_variables if with_weights else []
        return tape.gradient(value, [state, weights], cotangent)

    def _compile(self, function, *arguments):
        compiled = tf.function(function, jit_compile=self.jit_compile)
        compiled = compiled.get_concrete_function(*arguments)
        # A concrete function takes nests flat.
        return lambda *arguments: compiled(*tf.nest.flatten(arguments))
