"""Pictures of graphs, as text and in DOT."""

from __future__ import annotations

from rayshim.dag.class_node import ClassMethodNode, ClassNode
from rayshim.dag.dag_node import DAGNode
from rayshim.dag.function_node import FunctionNode
from rayshim.dag.input_node import InputAttributeNode

#: Fill colours of actors, one after the other.
_COLOURS = ("#cfe8ff", "#d8f5d0", "#ffe5c2", "#f3d6f5", "#fff3b0", "#d7d7f7")


def label_of(node: DAGNode) -> str:
    """A line or two that tell what a node is."""
    if isinstance(node, InputAttributeNode):
        return f"InputAttributeNode[{node.key}]"
    if isinstance(node, ClassMethodNode):
        if node.is_class_method_output:
            return f"ClassMethodOutputNode[{node.output_idx}]"
        actor = node._get_actor_handle()
        method = f"Method: {node.get_method_name()}"
        if actor is None:
            return method
        name = actor._meta.class_name
        return f"Actor: {name}\nID: {actor._id.hex()[:6]}...\n{method}"
    if isinstance(node, FunctionNode):
        return f"Function: {node._body_line()}"
    if isinstance(node, ClassNode):
        return f"Class: {node._body_line()}"
    return type(node).__name__


def edges_of(nodes: list[DAGNode]) -> list[tuple[int, int]]:
    """(from, to) of what depends on what, by index in ``nodes``."""
    index = {id(node): number for number, node in enumerate(nodes)}
    edges: dict[tuple[int, int], None] = {}
    for number, node in enumerate(nodes):
        for upstream in node._upstream_nodes:
            if id(upstream) in index:
                edges[(index[id(upstream)], number)] = None
    return list(edges)


def ascii_picture(nodes: list[DAGNode]) -> str:
    """The graph in lines: its nodes by number, then what each passes on."""
    lines = ["Nodes Information:"]
    for number, node in enumerate(nodes):
        label = label_of(node).replace("\n", " ")
        lines.append(f'{number} [label="Task {number}  {label}"]')
    lines += ["", "Edges Information:"]
    lines += [f"{start} ---> {end}" for start, end in edges_of(nodes)]
    lines += ["", "Graph Built:"]
    for depth, row in enumerate(_rows(nodes)):
        lines.append(
            f"{'  ' * depth}{'   '.join(f'{n}:{_short(nodes[n])}' for n in row)}"
        )
    return "\n".join(lines)


def _rows(nodes: list[DAGNode]) -> list[list[int]]:
    """Nodes by the length of the longest way to them."""
    depth = [0] * len(nodes)
    edges = edges_of(nodes)
    for _ in nodes:
        changed = False
        for start, end in edges:
            if depth[end] <= depth[start]:
                depth[end] = depth[start] + 1
                changed = True
        if not changed:
            break
    rows: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for number, row in enumerate(depth):
        rows[row].append(number)
    return rows


def _short(node: DAGNode) -> str:
    return label_of(node).splitlines()[-1].removeprefix("Method: ")


def dot_source(nodes: list[DAGNode], *, details: bool = False) -> str:
    """The graph in DOT; with ``details``, how values travel at each edge."""
    colours: dict[object, str] = {}
    lines = ["digraph compiled_graph {"]
    for number, node in enumerate(nodes):
        shape, colour = "rectangle", "lightblue"
        if isinstance(node, ClassMethodNode) and node.is_class_method_call:
            actor = node._get_actor_handle()
            shape = "oval"
            colour = colours.setdefault(actor, _COLOURS[len(colours) % len(_COLOURS)])
        label = f"Task {number}\n{label_of(node)}".replace('"', '\\"')
        lines.append(
            f"\t{number} [label={_quoted(label)} fillcolor={_quoted(colour)} "
            f"shape={shape} style=filled]"
        )
    note = f" [label={_quoted('ObjectRef')}]" if details else ""
    lines += [f"\t{start} -> {end}{note}" for start, end in edges_of(nodes)]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\n", "\\n") + '"'
