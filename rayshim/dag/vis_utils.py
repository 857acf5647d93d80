"""Draws a graph with pydot."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from rayshim.dag.dag_node import DAGNode
from rayshim.dag.graph_picture import dot_source


def plot(dag: DAGNode, to_file: str | None = None) -> Any:
    """Draw the graph that ends in a node.

    Args:
        dag: the last node.
        to_file: path of the picture; its extension says the format (default png).
            None draws into a temporary file, for notebooks.

    Returns:
        In an environment with IPython its picture, else None.

    Raises:
        ImportError: pydot or the program ``dot`` of graphviz is missing.
    """
    try:
        import pydot
    except ImportError:
        raise ImportError(
            "pydot is required to plot DAG, install it with `pip install pydot`."
        ) from None
    graph = pydot.graph_from_dot_data(dot_source(dag._in_order()))[0]
    temporary = None
    if to_file is None:
        handle, temporary = tempfile.mkstemp(suffix=".png")
        os.close(handle)
    path = to_file or temporary or ""
    extension = os.path.splitext(path)[1].lstrip(".") or "png"
    try:
        try:
            graph.write(path, format=extension)
        except FileNotFoundError:
            raise ImportError(
                "graphviz is required to plot DAG: its program `dot` was not found; "
                "download it from https://graphviz.org/download/"
            ) from None
        try:
            from IPython import display
        except ImportError:
            return None
        image: Any = display.Image
        return image(filename=path)
    finally:
        if temporary is not None:
            os.unlink(temporary)
