"""What the solves of a model found, by the names that an export gives it."""

import tensorflow as tf
from keras import tree

from deq_keras.serving.signature import as_sent, sent_dtype
from deq_keras.solvers import DIVERGED


class NamedSolutions:
    """The solutions of the equilibrium layers of a model.

    What one layer found is called `evaluations`, `residual`, `status` and
    `equilibrium`. Of several layers, `LAYER_evaluations` and so on. A state of several
    tensors is called `equilibrium_0`, `equilibrium_1`, ...

    Args:
        solutions: Dict of names to `deq_keras.solvers.Solution`s, as a
            `deq_keras.layers.SolveScope` has them; may be empty.
    """

    def __init__(self, solutions):
        self.solutions = solutions

    def __len__(self):
        return len(self.solutions)

    @property
    def max_iter(self):
        """The largest of the budgets that these solves had, or `None`."""
        budgets = [solution.trace.shape[0] for solution in self.solutions.values()]
        return max(budgets, default=None)

    def statistics(self):
        """Returns the statistics, `(batch,)` each."""
        return {
            self._prefix(name) + key: tensor
            for name, solution in self.solutions.items()
            for key, tensor in (
                ("evaluations", solution.num_evaluations),
                ("residual", solution.residual),
                ("status", solution.status),
            )
        }

    def statuses(self):
        """Returns the statuses alone, `(batch,)` each."""
        return {
            self._prefix(name) + "status": solution.status
            for name, solution in self.solutions.items()
        }

    def equilibria(self):
        """Returns the equilibria, as states to start the next solve from."""
        return self._tensors("equilibrium")

    def initial_states(self):
        """Returns the equilibria by the names of states to start from, as arrays."""
        tensors = self._tensors("initial_state")
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def specs(self):
        """Returns the `tf.TensorSpec`s of states to start from."""
        return {
            name: tf.TensorSpec(leaf.shape, sent_dtype(leaf.dtype), name=name)
            for name, leaf in self._leaves("initial_state").items()
        }

    def states(self, request):
        """Returns the states of a request, by the names of their layers.

        Args:
            request: Dict of tensors, with all states or with none.
        """
        states = {}
        for name, solution in self.solutions.items():
            leaves = [request.get(leaf) for leaf in self._names("initial_state", name)]
            if leaves[0] is not None:
                states[name] = tree.pack_sequence_as(solution.value, leaves)
        return states

    def failed(self):
        """Tells for which samples an evaluation was not finite, `(batch,)`; `None`
        without an equilibrium."""
        failed = [
            tf.equal(solution.status, DIVERGED) for solution in self.solutions.values()
        ]
        return tf.reduce_any(tf.stack(failed), axis=0) if failed else None

    def _tensors(self, kind):
        return {name: as_sent(leaf) for name, leaf in self._leaves(kind).items()}

    def _leaves(self, kind):
        return {
            name: leaf
            for layer, solution in self.solutions.items()
            for name, leaf in zip(
                self._names(kind, layer), tree.flatten(solution.value), strict=True
            )
        }

    def _names(self, kind, layer):
        count = len(tree.flatten(self.solutions[layer].value))
        name = self._prefix(layer) + kind
        return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]

    def _prefix(self, layer):
        return "" if len(self.solutions) == 1 else f"{layer}_"
