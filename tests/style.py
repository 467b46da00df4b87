"""How dense the code is: figures of its style, for each folder, for the core and for the shell.

    python tests/style.py [ROOT]        # ROOT defaults to src/kunita

The figures and their definitions:

- A *docstring* is any string that stands alone as a statement. A *code line* is a line that is not
  blank, does not start with `#` and is not part of a docstring.
- A *function* is any `def`, methods and inner functions included. Its *size* is the number of AST
  nodes in the statements of its body, and its *length* the number of lines from the first of these
  statements to the end. Decorators, signature and docstring do not count; a function that has only
  a docstring is left out.
- *Nodes per line* is the median over functions of size / length.
- *Nodes per function* is the median size. The *largest* size is given too, and the number of
  functions above `MAX_NODES`.
- A *tuple assignment* has a tuple on both sides, `a, b = x, y`. Unpacking the result of one call is
  none. They are counted per 1,000 code lines.
- *Columns* is the 90th percentile of the lengths of the code lines, indentation included, and
  *with docs* the same over code lines and docstrings together.
- *Comments* is the share of lines that start with `#` among the lines that are not blank.
- *Positional parameters* are those that a caller may pass by position, without `self` and `cls`.
  Functions with more than `MAX_POSITIONAL` of them are counted.

The core is what `CORE` names; the rest of the package is the shell.
"""

import ast
import dataclasses
import pathlib
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "kunita"

CORE = (
    "kernels",
    "numerics",
    "gaussians",
    "scores",
    "jaxrun",
    "flow",
    "observations",
    "inference",
    "posterior",
    "evaluation",
    "suspects",
    "data",
    "record",
    "registration",
    "checks",
    "fitting",
    "facts",
    "splines",
    "image_posterior",
    "image_record",
)
"""The modules and folders of the core."""

MAX_NODES = 250
"""Past this size a function is looking for a missing noun."""

MAX_POSITIONAL = 6
"""Past this number of positional parameters a call cannot be read."""


@dataclasses.dataclass(frozen=True)
class Function:
    """One function: where it is, and how much happens in it."""

    name: str
    size: int
    length: int
    positional: int

    @property
    def nodes_per_line(self) -> float:
        return self.size / self.length


@dataclasses.dataclass(frozen=True)
class Module:
    """What is counted in one file; the columns are the lengths of its lines."""

    name: str
    lines: int
    code_columns: tuple[int, ...]
    docstring_columns: tuple[int, ...]
    comment_lines: int
    tuple_assignments: int
    functions: tuple[Function, ...]

    @property
    def layer(self) -> str:
        """The folder it is in, or its own name at the top level."""
        return self.name.partition(".")[0]

    @property
    def in_core(self) -> bool:
        return self.layer in CORE


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of a set of modules, as the docstring of this file defines them."""

    lines: int
    comment_share: float
    functions: int
    nodes_per_line: float
    nodes_per_function: float
    tuples_per_1000: float
    columns: int
    columns_with_docstrings: int
    largest: int
    too_large: int
    too_many_positional: int


# ------------------------------------------------------------------------------------------ reading


def read_modules(root: pathlib.Path = SOURCE) -> list[Module]:
    """Measure every module below a folder."""
    return [measure(path, module_name(path, root)) for path in sorted(root.rglob("*.py"))]


def module_name(path: pathlib.Path, root: pathlib.Path) -> str:
    """The dotted name of a file inside the package, such as `flow.shooting`."""
    return ".".join(path.relative_to(root).with_suffix("").parts)


def measure(path: pathlib.Path, name: str) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    in_docstrings = docstring_lines(nodes)
    code = []
    docstrings = []
    comments = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if number in in_docstrings:
            docstrings.append(len(line))
        elif line.strip().startswith("#"):
            comments += 1
        else:
            code.append(len(line))
    return Module(
        name=name,
        lines=text.count("\n"),
        code_columns=tuple(code),
        docstring_columns=tuple(docstrings),
        comment_lines=comments,
        tuple_assignments=sum(is_tuple_assignment(node) for node in nodes),
        functions=tuple(functions_of(tree, name)),
    )


def functions_of(parent: ast.AST, prefix: str) -> Iterator[Function]:
    """Measure every function below a node; a method is named with its class."""
    for node in ast.iter_child_nodes(parent):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions_of(node, prefix)
            continue
        name = f"{prefix}.{node.name}"
        if not isinstance(node, ast.ClassDef):
            yield from measure_function(node, name)
        yield from functions_of(node, name)


def measure_function(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[Function]:
    """Its figures; none if it has only a docstring."""
    body = node.body[1:] if is_docstring(node.body[0]) else node.body
    if body:
        yield Function(
            name=name,
            size=sum(1 for statement in body for _ in ast.walk(statement)),
            length=node.end_lineno - body[0].lineno + 1,
            positional=count_positional(node.args),
        )


def count_positional(arguments: ast.arguments) -> int:
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def docstring_lines(nodes: Iterable[ast.AST]) -> set[int]:
    """The numbers of the lines that docstrings take."""
    numbers: set[int] = set()
    for node in nodes:
        if is_docstring(node):
            numbers.update(range(node.lineno, node.end_lineno + 1))
    return numbers


def is_tuple_assignment(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


# ---------------------------------------------------------------------------------------- summaries


def summarise(modules: Iterable[Module]) -> Figures:
    """The figures of some modules taken together."""
    modules = list(modules)
    functions = [function for module in modules for function in module.functions]
    code = [column for module in modules for column in module.code_columns]
    docstrings = [column for module in modules for column in module.docstring_columns]
    comments = sum(module.comment_lines for module in modules)
    filled = len(code) + len(docstrings) + comments
    tuples = sum(module.tuple_assignments for module in modules)
    return Figures(
        lines=sum(module.lines for module in modules),
        comment_share=comments / max(filled, 1),
        functions=len(functions),
        nodes_per_line=median([function.nodes_per_line for function in functions]),
        nodes_per_function=median([function.size for function in functions]),
        tuples_per_1000=1000 * tuples / max(len(code), 1),
        columns=ninetieth_percentile(code),
        columns_with_docstrings=ninetieth_percentile(code + docstrings),
        largest=max((function.size for function in functions), default=0),
        too_large=len(large_functions(modules)),
        too_many_positional=len(wide_functions(modules)),
    )


def median(numbers: Sequence[float]) -> float:
    return statistics.median(numbers) if numbers else 0.0


def ninetieth_percentile(columns: Sequence[int]) -> int:
    return sorted(columns)[int(0.9 * len(columns))] if columns else 0


def large_functions(modules: Iterable[Module]) -> list[Function]:
    """The functions above `MAX_NODES`, the largest first."""
    functions = [function for module in modules for function in module.functions]
    large = [function for function in functions if function.size > MAX_NODES]
    return sorted(large, key=lambda function: -function.size)


def wide_functions(modules: Iterable[Module]) -> list[Function]:
    """The functions with more than `MAX_POSITIONAL` positional parameters, the worst first."""
    functions = [function for module in modules for function in module.functions]
    wide = [function for function in functions if function.positional > MAX_POSITIONAL]
    return sorted(wide, key=lambda function: -function.positional)


# ----------------------------------------------------------------------------------------- printing

HEADINGS = (
    "lines",
    "comments",
    "functions",
    "nodes/line",
    "nodes/function",
    "tuples/1000",
    "columns",
    "with docs",
    "largest",
    f"> {MAX_NODES}",
    f"> {MAX_POSITIONAL} params",
)


def table(modules: Sequence[Module]) -> str:
    """One row for each folder or top-level module; then the core, the shell, and all of it."""
    core = [module for module in modules if module.in_core]
    shell = [module for module in modules if not module.in_core]
    head = ("", *HEADINGS)
    rows = [*layer_rows(core), *layer_rows(shell)]
    totals = [row("core", core), row("shell", shell), row("all", modules)]
    return "\n".join(aligned([head, *rows, head, *totals]))


def layer_rows(modules: Sequence[Module]) -> list[tuple[str, ...]]:
    layers = sorted({module.layer for module in modules})
    return [row(layer, [m for m in modules if m.layer == layer]) for layer in layers]


def row(title: str, modules: Sequence[Module]) -> tuple[str, ...]:
    figures = summarise(modules)
    return (
        title,
        f"{figures.lines}",
        f"{100 * figures.comment_share:.1f} %",
        f"{figures.functions}",
        f"{figures.nodes_per_line:.1f}",
        f"{figures.nodes_per_function:.0f}",
        f"{figures.tuples_per_1000:.1f}",
        f"{figures.columns}",
        f"{figures.columns_with_docstrings}",
        f"{figures.largest}",
        f"{figures.too_large}",
        f"{figures.too_many_positional}",
    )


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of text with the first column to the left and the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(cells))
    return lines


def main(arguments: Sequence[str]) -> None:
    root = pathlib.Path(arguments[0]) if arguments else SOURCE
    modules = read_modules(root)
    lines = [table(modules), ""]
    for function in large_functions(modules):
        lines.append(f"{function.name}: {function.size} nodes")
    for function in wide_functions(modules):
        lines.append(f"{function.name}: {function.positional} positional parameters")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
