"""Small changes of a module's code, each of which a test should notice.

A change is made in the syntax tree: a comparison's boundary, a condition, a number, a statement that is dropped. Texts, messages, logs,
annotations, docstrings and sizes of memory stay as they are, and so does a change that any test notices, such as None in place of a required
value.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "iter"}
_SPOKEN = {"__repr__", "__str__"}
_SAFEGUARDS = {"init", "strict", "zero_copy_only"}
_LOGS = {"log", "_log", "logger", "logging", "warnings"}
_SKIPPED = {"annotation", "returns", "decorator_list", "bases", "keywords_of_class", "type_comment", "type_params"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module.

    Attributes:
        file: path of the module below the root, with slashes.
        number: its place among the changes of the module, from 0.
        scope: dotted name of the function or class, empty for the module.
        lines: first and last line of the changed statement's head.
        imported: whether the statement runs when the module is imported.
        was, now: the statement before and after, normalised; a compound one without its body. `return`, `break` and `continue` have the head
            of the statement around them, because a function may have several.
    """

    file: str
    number: int
    scope: str
    lines: tuple[int, int]
    imported: bool
    was: str
    now: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The identity of the mutation, which stays the same when lines move."""
        return self.file, self.scope, self.was, self.now


@dataclass(frozen=True, slots=True)
class _Site:
    """A node in its place, and what comes there instead."""

    parent: ast.AST
    field: str
    index: int | None
    now: ast.AST
    statement: ast.AST
    scope: tuple[str, ...]
    imported: bool

    def put(self, node: ast.AST) -> ast.AST:
        """Puts `node` into the place, and returns what was there."""
        if self.index is None:
            was = getattr(self.parent, self.field)
            setattr(self.parent, self.field, node)
        else:
            nodes = getattr(self.parent, self.field)
            was, nodes[self.index] = nodes[self.index], node
        return was  # type: ignore[no-any-return]


def mutants(root: Path, file: str) -> list[Mutant]:
    """All changes of a module, in the order of its text."""
    result = []
    for number, site in enumerate(_sites(ast.parse((root / file).read_text(encoding="utf-8")))):
        dropped = isinstance(site.now, ast.stmt)
        was = _head(site.statement)
        original = site.put(site.now)
        now = _head(site.now if dropped else site.statement)
        site.put(original)
        if dropped and isinstance(original, ast.Return | ast.Break | ast.Continue):
            was, now = (f"{_head(site.parent)} {text}" for text in (was, now))
        if was != now:
            where = ".".join(site.scope)
            result.append(Mutant(file, number, where, _lines(site.statement), site.imported, was, now))
    return result


def mutate(source: str, number: int) -> ast.Module:
    """The module with one change."""
    tree = ast.parse(source)
    site = next(site for place, site in enumerate(_sites(tree)) if place == number)
    site.put(ast.copy_location(site.now, site.statement))
    return ast.fix_missing_locations(tree)


def _head(node: ast.AST) -> str:
    """The text of a simple statement, or of a compound one up to its colon."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        node = copy.copy(node)
        node.decorator_list = []
    text = ast.unparse(node)
    return text.partition("\n")[0] if hasattr(node, "body") else text


def _lines(node: ast.AST) -> tuple[int, int]:
    """The lines of a statement's head."""
    first = _line(node)
    body = getattr(node, "body", None)
    if isinstance(body, list):
        return first, max(first, _line(body[0]) - 1)
    return first, getattr(node, "end_lineno", None) or first


def _line(node: ast.AST) -> int:
    return node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno  # type: ignore[attr-defined]


def _sites(tree: ast.Module) -> Iterator[_Site]:
    yield from _in(tree, tree, (), imported=True)


def _in(
    node: ast.AST, statement: ast.AST, scope: tuple[str, ...], returns: str = "", *, imported: bool
) -> Iterator[_Site]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = (*scope, node.name)
        returns = ast.unparse(getattr(node, "returns", None) or ast.Constant(...))
    for field, value in ast.iter_fields(node):
        if field in _SKIPPED or (isinstance(node, ast.ClassDef) and field == "keywords"):
            continue
        # Defaults are evaluated where the function is defined; its body is not.
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and field == "body"
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _stays(child):
                continue
            inner = child if isinstance(child, ast.stmt | ast.match_case | ast.excepthandler) else statement
            at_import = imported and not later
            for now in _instead(child, node, scope, returns):
                yield _Site(node, field, index, now, inner, scope, at_import)
            yield from _in(child, inner, scope, returns, imported=at_import)


def _stays(node: ast.AST) -> bool:
    """Whether nothing below a node is changed: text for people, sizes of memory, and what only type checkers and class bodies ask."""
    match node:
        case ast.JoinedStr() | ast.Subscript(value=ast.JoinedStr()) | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.FunctionDef(name=name):
            return name in _SPOKEN
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(name)))):
            return name in _LOGS
        case ast.BinOp(left=ast.Constant(value=int()), op=ast.LShift(), right=ast.Constant(value=10 | 20 | 30)):
            return True  # a size of memory, of which no test should know whether it is 31 or 32 MiB
        case ast.BinOp(left=ast.Constant(value=int()), op=ast.Mult(), right=ast.Constant(value=1024)):
            return True
        case ast.Assign(targets=[ast.Name("__slots__" | "__all__" | "__match_args__")]):
            return True
        case ast.keyword(arg=name):
            return name in _SAFEGUARDS
    return False


def _instead(node: ast.AST, parent: ast.AST, scope: tuple[str, ...], returns: str) -> Iterator[ast.AST]:
    """The mutations of a node."""
    if isinstance(node, ast.stmt):
        yield from _instead_of_statement(node, scope)
    elif isinstance(node, ast.expr) and not isinstance(parent, ast.Raise):
        yield from _instead_of_expression(node)
        if isinstance(parent, ast.comprehension) and node in parent.ifs:
            yield ast.Constant(True)
        elif isinstance(parent, ast.If | ast.While | ast.IfExp) and node is parent.test:
            if not isinstance(node, ast.Compare | ast.BoolOp) and not _is_not(node):
                yield ast.UnaryOp(ast.Not(), node)
        elif isinstance(parent, ast.Return) and not isinstance(node, ast.Constant):
            if returns == "bool":
                yield from (ast.Constant(True), ast.Constant(False))
            elif returns.endswith("| None"):
                yield ast.Constant(None)


def _is_not(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _instead_of_statement(node: ast.stmt, scope: tuple[str, ...]) -> Iterator[ast.stmt]:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()) | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Return(value=None) | ast.AugAssign():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if scope[-1:] != ("__init__",):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
    if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC and not _is_text(node.value):
        yield ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)


def _instead_of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                flipped = [*operators[:place], _COMPARISONS[type(operator)](), *operators[place + 1 :]]
                yield ast.Compare(node.left, flipped, node.comparators)
        case ast.BoolOp(values=values):
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), values)
            for place in range(len(values)):
                others = [*values[:place], *values[place + 1 :]]
                yield ast.BoolOp(node.op, others) if len(others) > 1 else others[0]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            if not _is_text(left) and not _is_text(right):
                yield ast.BinOp(left, _ARITHMETIC[type(operator)](), right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Call(func=ast.Name(name)) if name in _CALLS and node.args:
            arguments = node.keywords if name not in ("sorted", "reversed") else []
            yield ast.Call(ast.Name(_CALLS[name], ast.Load()), node.args, arguments)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
