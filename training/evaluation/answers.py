"""What evaluations ask of a model or of an exported file: outputs at a budget, and what
the solves found."""

import numpy as np

import deq_keras

from ..errors import InputError, reading


class ExportedModel:
    """An exported file, in the place of a `CutModel`.

    Args:
        path: the file or folder.

    Raises:
        InputError: if it cannot be loaded.
    """

    def __init__(self, path):
        self._path = path
        try:
            with self._reading():
                self._ask = deq_keras.serving.load(path)
        except ImportError as error:
            raise InputError(str(error)) from error

    def answers(self):
        """See `CutModel.answers`."""

        def answer(inputs, budget):
            request = {
                "inputs": np.asarray(inputs),
                "max_iter": np.array(budget, "int64"),
                "tol": np.array(-1.0, "float32"),
            }
            with self._reading():
                answered = self._ask(request)
                return answered["outputs"], {
                    "evaluations": answered["evaluations"],
                    "residual": answered["residual"],
                    "converged": answered["status"] == deq_keras.solvers.CONVERGED,
                }

        return answer

    def _reading(self):
        return reading(self._path, "Write it again with deq-keras export.")


def means_of_solves(solves):
    """Returns the mean of each statistic over all samples.

    Args:
        solves: list of dicts of arrays with an entry for each sample.
    """
    values = {name: [np.asarray(solve[name]) for solve in solves] for name in solves[0]}
    return {name: float(np.concatenate(parts).mean()) for name, parts in values.items()}
