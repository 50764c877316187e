"""What a traced function consists of."""


def nodes(function):
    """Yields the operations of a function and of those that it calls.

    Args:
        function: A `tf.ConcreteFunction`.
    """
    graph = function.graph.as_graph_def()
    yield from graph.node
    for inner in graph.library.function:
        yield from inner.node_def
