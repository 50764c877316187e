"""Animations of the solution of a problem, evaluation by evaluation."""

import tensorflow as tf

from ...errors import InputError
from ...evaluation.reasoning_pictures import animate_board, animate_maze
from .level_measurement import weight_tied


def draw_solving(path, task, model, examples, num_evaluations):
    """Writes a GIF that shows how a model solves the first example.

    Args:
        path: Path of the file.
        task: The `ReasoningTask`.
        model: A `ReasonerTagger` whose solver is a `FixedPointIteration`.
        examples: `Examples` of the task.
        num_evaluations: Positive integer. Number of evaluations. The GIF has one frame
            before each evaluation and one after the last.
    """
    frames = probabilities(model, examples.inputs[:1], num_evaluations)
    draw(path, task, examples, frames, range(num_evaluations + 1))


def draw(path, task, examples, frames, evaluations):
    """Writes a GIF of the first example.

    Args:
        path: Path of the file.
        task: The `ReasoningTask`.
        examples: `Examples` of the task.
        frames: Float array, what `probabilities` returns.
        evaluations: Sequence of integers. Evaluations to show.
    """
    _PICTURES[task.name](
        path,
        examples.inputs[0],
        frames[list(evaluations)],
        examples.targets[0],
        evaluations,
        task,
    )


def check_picture(task, level):
    """Raises `InputError` if problems of a task and a level cannot be drawn."""
    task.check_level(level)
    if task.name not in _PICTURES:
        raise InputError(
            "`evaluation.picture` must be null: problems of the task "
            f"`{task.name}` are not drawn, but those of {', '.join(_PICTURES)}."
        )


def probabilities(model, inputs, num_evaluations):
    """Returns the class probabilities of the initial state and after each evaluation.

    Args:
        model: A `ReasonerTagger` whose solver is a `FixedPointIteration`.
        inputs: Array of one problem.
        num_evaluations: Positive integer. Number of evaluations.

    Returns:
        Float array `(1 + evaluations, *positions, classes)`.
    """
    damping = model.backbone.deq.solver.damping

    @tf.function
    def trajectory(inputs):
        parts, encoded = weight_tied(model, inputs)
        injection = parts.inject(encoded)
        states = tf.TensorArray(tf.float32, num_evaluations + 1)
        state = parts.initial_state(injection)
        for evaluation in tf.range(num_evaluations):
            states = states.write(evaluation, _softmax(model, state))
            state += damping * (parts.step(state, injection) - state)
        return states.write(num_evaluations, _softmax(model, state)).stack()

    return trajectory(inputs).numpy()[:, 0]


def _softmax(model, state):
    return tf.nn.softmax(tf.cast(model.head(state), tf.float32))


def _draw_maze(path, maze, probabilities, truth, evaluations, task):
    del task
    animate_maze(path, maze, probabilities[..., 1], truth, evaluations)


def _draw_board(path, board, probabilities, truth, evaluations, task):
    animate_board(path, board, probabilities, truth, evaluations, task.box_shape)


_PICTURES = {
    "mazes": _draw_maze,
    "sudoku_4x4": _draw_board,
    "sudoku_6x6": _draw_board,
}
