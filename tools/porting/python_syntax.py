"""Parses Python sources, Python 2 included."""
import ast
import io
import re
import textwrap
import tokenize

DOTTED = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def named_in(call):
    """The attribute in a call of `getattr(x, "name", …)` or `hasattr(x, "name")`; None for other calls."""
    is_asking = isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr") and len(call.args) > 1
    name = getattr(call.args[1], "value", None) if is_asking else None
    return ast.copy_location(ast.Attribute(call.args[0], name, ast.Load()), call) if isinstance(name, str) else None


class _NamedAttributes(ast.NodeTransformer):
    """Rewrites `getattr` and `hasattr` calls with literal names as attributes: `x.name`, `x.name or default`, `not x.name`."""

    def visit_Call(self, node):
        self.generic_visit(node)
        named = named_in(node)
        if named is None:
            return node
        if node.func.id == "hasattr":
            named = ast.UnaryOp(ast.Not(), named)
        elif len(node.args) > 2:
            named = ast.BoolOp(ast.Or(), [named, *node.args[2:]])
        return ast.copy_location(named, node)


def called_by(call):
    """The call that `partial(f, x, y=z)` prepares; otherwise the call itself."""
    is_partial = "partial" in (getattr(call.func, "id", None), getattr(call.func, "attr", None)) and call.args
    return ast.Call(call.args[0], call.args[1:], call.keywords) if is_partial else call


def statements(text):
    """(first line, source) of each logical line of a file that Python 3 cannot parse as a whole."""
    first, lines = None, text.split("\n")
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NEWLINE:
                if first is not None:
                    yield first, textwrap.dedent("\n".join(lines[first - 1 : token.end[0]]))
                first = None
            elif first is None and token.type not in (tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.COMMENT):
                first = token.start[0]
    except (tokenize.TokenError, IndentationError):  # the rest, line by line
        for line in range(first or 1, len(lines) + 1):
            yield line, lines[line - 1].strip()


def parse_statement(source):
    """The tree of one logical line without its block; if it does not parse, a tree of its names."""
    for before, after in (("", ""), ("", " pass"), ("if 1: pass\n", " pass"), ("try: pass\n", " pass"), ("", "\ndef _(): pass")):
        try:
            tree = ast.parse(before + source + after)
            return ast.increment_lineno(tree, -before.count("\n")).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    body = []
    for line, row in enumerate(source.splitlines(), 1):
        for name in DOTTED.findall(row.split("#")[0]):
            try:
                body += ast.increment_lineno(ast.parse(name), line - 1).body
            except SyntaxError:  # a Python 3 keyword among the names
                continue
    return body


def parse(text):
    """The tree of a file, with `getattr` rewritten as attributes. If Python 3 cannot parse the file, also a note; its statements are then
    parsed one by one."""
    tree, note = _parse(text)
    return _NamedAttributes().visit(tree), note


def _parse(text):
    try:
        return ast.parse(text), None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        body = []
        for first, source in statements(text):
            for node in parse_statement(source):
                body.append(ast.increment_lineno(node, first - 1))
        return ast.Module(body, []), f"line {getattr(error, 'lineno', None) or 1} is not Python 3; read statement by statement"
