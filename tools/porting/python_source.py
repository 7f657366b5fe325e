"""Finds what Python sources use of Apex: follows imports, aliases and objects of Apex's classes through a file."""
import ast
import collections
import contextlib
import io
import re
import textwrap
import tokenize

from findings import finding_at
from rules import UNCLASSIFIED

SUFFIXES = {".py"}
DOTTED = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
IMPORTERS = {"__import__", "import_module", "importorskip"}  # functions that answer a module by its name

Symbol = collections.namedtuple("Symbol", "name")  # a module, class or function of Apex
Instance = collections.namedtuple("Instance", "class_name is_sure", defaults=(True,))  # an object of one of its classes


def statements(text):
    """(first line, source) of each logical line of a file that Python 3 does not parse as a whole."""
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
    """The tree of one logical line, whose block is elsewhere; what is left of its names if it has none."""
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
            except SyntaxError:  # a keyword of Python 3 among the names
                continue
    return body


def parse(text):
    """The tree of a file, and a note if Python 3 does not parse it: then statements stand one after the other."""
    try:
        return ast.parse(text), None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        body = []
        for first, source in statements(text):
            for node in parse_statement(source):
                body.append(ast.increment_lineno(node, first - 1))
        return ast.Module(body, []), f"line {getattr(error, 'lineno', None) or 1} is not Python 3; read statement by statement"


def is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def possible(value):
    """The same of what may be something else, or be derived, and then has other members as well."""
    return value._replace(is_sure=False) if isinstance(value, Instance) else value


def members_of(class_node):
    """The methods of a class, and what its body assigns."""
    assigned = (target for part in class_node.body if isinstance(part, ast.Assign) for target in part.targets)
    named = (part for part in (*class_node.body, *assigned) if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Name)))
    return {getattr(part, "name", None) or part.id for part in named}


class Reader(ast.NodeVisitor):
    """Walks a file twice: the first time to learn what names stand for, the second to report."""

    def __init__(self, rules, has_blocks=True):
        self.rules = rules
        self._has_blocks = has_blocks  # else statements stand one after the other, and none says that another has not run
        self.reports = []  # (node, name, kind, rule)
        self._scopes = collections.defaultdict(dict)  # of functions and the file, by node; None: a name that is something else
        self._chain = [None]
        self._globals = collections.defaultdict(set)  # names that a function declares global
        self._classes = collections.defaultdict(dict)  # what `self.x` is, by class
        self._others = set()  # (class, x) of each `self.x` that is assigned something else, too
        self._class = None
        self._derived = None  # what an object of that class is to Apex
        self._body = None  # the function or class whose own statements are read
        self._results = {}  # what the file's own functions answer, by name
        self._imports = {}  # (local name, what it stands for) -> the import, until it is used
        self._foreign = set()  # names that other modules, or the file itself, have as well
        self._met = set()  # the parts of the names of Apex that the file has
        self._reporting = False
        self.uses_apex = False

    def read(self, tree):
        self.visit(tree)
        self.uses_apex = bool(self._imports) or self.uses_apex
        if not self.uses_apex:
            return
        self._reporting = True
        self.visit(tree)
        for (_, name), node in self._imports.items():
            if not self.rules.is_package(name):
                self._report(node, name, "import", self.rules.of(name) or UNCLASSIFIED)

    def _report(self, node, name, kind, rule):
        if self._reporting:
            self.reports.append((node, name, kind, rule))

    # ---- what names stand for ----

    def _bind(self, name, value):
        function = self._chain[-1]
        self._scopes[None if name in self._globals[function] else function][name] = value

    def _lookup(self, name):
        for scope in reversed(self._chain):
            if name in self._scopes[scope]:
                return self._scopes[scope][name]
        return None

    def _assign(self, target, value, source):
        """Binds what a statement assigns: `value` is what the expression `source` stands for."""
        if isinstance(target, ast.Name):
            if value is not None or self._hides(target.id, source):
                self._bind(target.id, value)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, None, source)
        elif isinstance(target, (ast.Tuple, ast.List)):
            paired = isinstance(source, (ast.Tuple, ast.List)) and len(source.elts) == len(target.elts)
            for place, each in enumerate(target.elts):
                part = source.elts[place] if paired else source
                self._assign(each, self._resolve(part) if paired else None, part)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            owner = self._class if target.value.id == "self" else target.value.id
            if value is not None:
                self._classes[owner][target.attr] = value
            elif not is_none(source):
                self._others.add((owner, target.attr))

    def _assign_element(self, target, iterable):
        """Binds what a loop assigns: one element of the expression `iterable`."""
        is_numbered = isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "enumerate"
        if is_numbered and iterable.args and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            self._assign(target.elts[0], None, ast.Starred(iterable))
            self._assign_element(target.elts[1], iterable.args[0])
        else:
            self._assign(target, self._element_of(iterable), ast.Starred(iterable))

    def _hides(self, name, source):
        """Whether assigning an unknown value ends what the name stood for. Not with None, which stands for what is not there, nor with
        what is made of it, as in `model = model.cuda()`."""
        if not self._has_blocks or isinstance(self._body, ast.ClassDef) or name in self._globals[self._chain[-1]]:
            return False
        if is_none(source):
            return False
        return not any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(source))

    @contextlib.contextmanager
    def _branch(self):
        """Around statements that may not run: what was known before them is possible after them."""
        scope = self._scopes[self._chain[-1]]
        before = dict(scope)
        yield
        for name, value in before.items():
            if value != scope[name]:
                scope[name] = possible(scope[name] or value)

    def _visit_branch(self, statements):
        with self._branch():
            self._visit_all(statements)

    def _visit_all(self, nodes):
        for node in nodes:
            self.visit(node)

    def _resolve(self, node):
        """The Symbol or Instance of an expression, or None."""
        if isinstance(node, ast.Name):
            return self._lookup(node.id)
        if isinstance(node, ast.Attribute):
            return self._resolve_attribute(node)[1]
        if isinstance(node, ast.Call):
            return self._resolve_call(node)
        if isinstance(node, ast.Subscript):
            return self._element_of(node.value)
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            parts = (node.body, node.orelse) if isinstance(node, ast.IfExp) else node.values
            return next((possible(value) for value in map(self._resolve, parts) if value), None)
        return None

    def _element_of(self, node):
        """What a subscript of an expression answers, or a loop over it."""
        of = self._resolve(node)
        result = isinstance(of, Symbol) and self.rules.result_of(of.name)
        return Instance(result) if result else None

    def _resolve_attribute(self, node):
        """What stands before the dot, and the attribute."""
        base = self._resolve(node.value)
        if isinstance(base, Symbol):
            return base, Symbol(f"{base.name}.{node.attr}")
        if base is None and isinstance(node.value, ast.Name):
            is_own = node.value.id == "self"
            owner = self._class if is_own else node.value.id
            known = self._classes[owner].get(node.attr)
            if (owner, node.attr) in self._others:
                known = possible(known)
            return self._base(node.attr) if is_own and known is None else None, known
        return base, None

    def _base(self, attribute=None):
        """An object of the class of Apex that the class around derives from, unless it defines the attribute itself."""
        return None if self._derived is None or attribute in members_of(self._class) else self._derived

    def _resolve_with_base(self, node):
        return self._resolve_attribute(node) if isinstance(node, ast.Attribute) else (None, self._resolve(node))

    def _resolve_call(self, node):
        base, callee = self._resolve_with_base(node.func)
        if isinstance(callee, Symbol):
            name = self.rules.canonical(callee.name)
            result = self.rules.result_of(name) or (name if self.rules.is_class(name) else None)
            return Instance(result) if result else None
        if isinstance(base, Instance):
            result = self.rules.result_of(f"{base.class_name}.{node.func.attr}")
            return Instance(result) if result else None
        function = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        if function in IMPORTERS:
            return self._imported_by_name(node)
        if isinstance(node.func, ast.Name):
            return self._base() if function == "super" else self._results.get(function)
        return None

    def _imported_by_name(self, node):
        name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if isinstance(name, str) and name.split(".")[0] in self.rules.roots:
            self.uses_apex = True
            return Symbol(name)
        return None

    # ---- statements that bind names ----

    def visit_Global(self, node):
        self._globals[self._chain[-1]].update(node.names)

    def visit_Import(self, node):
        for alias in node.names:
            local = alias.asname or alias.name.split(".")[0]
            if alias.name.split(".")[0] in self.rules.roots:
                self.uses_apex = True
                self._bind(local, Symbol(alias.name if alias.asname else local))
            else:
                self._foreign.add(local)

    def visit_ImportFrom(self, node):
        of_apex = not node.level and node.module and node.module.split(".")[0] in self.rules.roots
        for alias in node.names:
            if not of_apex:
                self._foreign.add(alias.asname or alias.name)
                continue
            self.uses_apex = True
            if alias.name == "*":
                for local, name in self.rules.names_in(node.module).items():
                    self._bind(local, Symbol(name))
                continue
            name = f"{node.module}.{alias.name}"
            self._met.update(name.split("."))
            self._bind(alias.asname or alias.name, Symbol(name))
            if not self._reporting:
                self._imports[alias.asname or alias.name, name] = alias

    def visit_Assign(self, node):
        self.visit(node.value)
        value = self._resolve(node.value)
        for target in node.targets:
            self._assign(target, value, node.value)
            self.visit(target)

    def visit_AnnAssign(self, node):
        self.visit(node.annotation)
        if node.value:
            self.visit(node.value)
            self._assign(node.target, self._resolve(node.value), node.value)
        self.visit(node.target)

    def visit_With(self, node):
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, self._resolve(item.context_expr), item.context_expr)
                self.visit(item.optional_vars)
        self._visit_all(node.body)

    visit_AsyncWith = visit_With

    # ---- statements of which some may not run ----

    def visit_If(self, node):
        self.visit(node.test)
        self._visit_branch(node.body)
        self._visit_branch(node.orelse)

    visit_While = visit_If

    def visit_For(self, node):
        self.visit(node.iter)
        with self._branch():
            self._assign_element(node.target, node.iter)
            self._visit_all([node.target, *node.body])
        self._visit_branch(node.orelse)

    visit_AsyncFor = visit_For

    def visit_Try(self, node):
        for part in (node.body, *node.handlers, node.orelse):
            self._visit_branch(part if isinstance(part, list) else [part])
        self._visit_all(node.finalbody)

    visit_TryStar = visit_Try

    def visit_match_case(self, node):
        with self._branch():
            self.generic_visit(node)

    # ---- scopes ----

    def visit_ClassDef(self, node):
        self._foreign.add(node.name)
        self._visit_all((*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)))
        bases = [value for value in map(self._resolve, node.bases) if isinstance(value, Symbol) and self.rules.is_class(value.name)]
        derived = possible(Instance(self.rules.canonical(bases[0].name))) if bases else None
        if derived:  # its objects have what the base's have
            self._results[node.name] = derived
        outer, (self._class, self._derived, self._body) = (self._class, self._derived, self._body), (node, derived, node)
        self._visit_all(node.body)
        self._class, self._derived, self._body = outer

    def visit_FunctionDef(self, node):
        if not isinstance(self._body, ast.ClassDef):
            self._foreign.add(node.name)
        for each in node.decorator_list:
            if not isinstance(each, ast.Call) and self._use(each, "call"):
                continue
            self.visit(each)
        self.visit(node.args)
        with self._function(node):
            self._visit_all(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node):
        self.visit(node.args)
        with self._function(node):
            self.visit(node.body)

    @contextlib.contextmanager
    def _function(self, node):
        """Within a function: a parameter is what its default is, or something that the file does not show."""
        values = self._parameters(node.args)
        outer, self._body = self._body, node
        self._chain.append(node)
        self._scopes[node].update(values)
        yield
        self._chain.pop()
        self._body = outer

    def _visit_comprehension(self, node):
        self._chain.append(node)  # its names are its own
        for each in node.generators:
            self.visit(each.iter)
            self._assign_element(each.target, each.iter)
            self._visit_all([each.target, *each.ifs])
        self._visit_all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._chain.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _parameters(self, arguments):
        positional = [*arguments.posonlyargs, *arguments.args]
        known = dict.fromkeys([*positional, *arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg))])
        known.update(zip(reversed(positional), reversed(arguments.defaults)))
        known.update(zip(arguments.kwonlyargs, arguments.kw_defaults))
        return {argument.arg: default and self._resolve(default) for argument, default in known.items()}

    def visit_Return(self, node):
        value = node.value and self._resolve(node.value)
        function = self._chain[-1]
        if isinstance(value, Instance) and function is not None and self._class is None:
            self._results[function.name] = possible(value)
        self.generic_visit(node)

    # ---- uses ----

    def _use(self, node, kind):
        """Reports a name or attribute if it stands for something of Apex. Answers whether it does."""
        base, value = self._resolve_with_base(node)
        if isinstance(value, Symbol):
            return self._use_symbol(node, value.name, kind)
        if not isinstance(node, ast.Attribute):
            return False
        if isinstance(base, Instance):
            rule = self._rule_of_member(base, node)
            if rule:
                self._report(node, f"{base.class_name}.{node.attr}", kind, rule)
                self._use_base(node.value)
                return True
        rule = self.rules.attributes.get(node.attr)
        if rule and not isinstance(base, Symbol) and not self._is_of_others(rule.owner_of(node.attr)):
            self._report(node, node.attr if rule.names[0] == node.attr else f"…{node.attr}", kind, rule)
            self._use_base(node.value)
            return True
        return False

    def _rule_of_member(self, base, node):
        """The rule of an attribute of an object of Apex; UNCLASSIFIED if it is sure that Apex's class should have it."""
        rule = self.rules.of_member(base.class_name, node.attr, isinstance(node.ctx, ast.Store))
        is_unknown = base.is_sure and self._has_blocks and self.rules.has_all_members(base.class_name)
        return rule or (UNCLASSIFIED if is_unknown and not node.attr.endswith("__") else None)

    def _is_of_others(self, class_name):
        """Whether the file has a class of this name, and it is not Apex's."""
        return class_name in self._foreign and class_name not in self._met

    def _use_base(self, node):
        """`FP16_Optimizer(sgd).step()`: what stands before the dot is a use of its own, unless it is a name."""
        if not isinstance(node, ast.Name):
            self.visit(node)

    def _root(self, node):
        while isinstance(node, ast.Attribute):
            node = node.value
        return node.id if isinstance(node, ast.Name) else None

    def _use_symbol(self, node, name, kind):
        root = self._root(node)
        rule = self.rules.of(name)
        self._met.update(name.split("."))
        if self._reporting:
            for key in [key for key in self._imports if key[0] == root]:
                if name == key[1] or name.startswith(key[1] + "."):
                    del self._imports[key]
        if rule is None and (root in self._foreign or self.rules.is_package(name) or name.endswith("__")):
            return False
        self._report(node, self.rules.canonical(name), kind, rule or UNCLASSIFIED)
        return True

    def visit_Call(self, node):
        if not self._use(node.func, "call"):
            self.visit(node.func)
        callee = self._callee(node.func)
        for keyword in node.keywords:
            rule = keyword.arg and callee and self.rules.of_keyword(callee, keyword.arg)
            if rule and not (rule is UNCLASSIFIED and self._root(node.func) in self._foreign):
                self._report(keyword, f"{callee}({keyword.arg})", "keyword", rule)
            self.visit(keyword.value)
        for argument in node.args:
            self.visit(argument)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            self._use_flags(node)

    def _callee(self, node):
        """The name of the function, class or method of Apex that is called, if it is one."""
        base, value = self._resolve_with_base(node)
        if isinstance(value, Symbol):
            return self.rules.canonical(value.name)
        return f"{base.class_name}.{node.attr}" if isinstance(base, Instance) else None

    def _use_flags(self, node):
        for argument in node.args:
            if isinstance(argument, ast.Constant) and argument.value in self.rules.flags:
                self._report(argument, argument.value, "flag", self.rules.flags[argument.value])

    def visit_Attribute(self, node):
        if not self._use(node, "reference"):
            self.generic_visit(node)

    def visit_Constant(self, node):
        """A name of Apex as a string, as registries of optimizers have them."""
        if isinstance(node.value, str) and node.value.startswith("apex.") and DOTTED.fullmatch(node.value):
            rule = self.rules.exact(node.value)
            if rule:
                self.uses_apex = True
                self._report(node, self.rules.canonical(node.value), "reference", rule)

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load):
            self._use(node, "reference")


def scan(path, text, rules):
    """Findings of one file, and notes on how it was read."""
    tree, note = parse(text)
    reader = Reader(rules, has_blocks=note is None)
    reader.read(tree)
    lines = text.split("\n")
    found = (finding_at(path, lines, (node.lineno, node.col_offset), name, kind, rule) for node, name, kind, rule in reader.reports)
    findings = sorted(set(found), key=lambda finding: (finding.line, finding.column, finding.name))
    return findings, [f"{path}: {note}"] if note and findings else []
