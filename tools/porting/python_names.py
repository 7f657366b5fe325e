"""Resolves the names of a Python source to names of Apex: follows imports, assignments, functions and classes of a file."""
import ast
import collections
import contextlib

from python_syntax import called_by

IMPORTERS = {"__import__", "import_module", "importorskip"}  # functions that return a module by its name

Symbol = collections.namedtuple("Symbol", "name")  # a module, class or function of Apex
Instance = collections.namedtuple("Instance", "class_name is_sure", defaults=(True,))  # an object of a class of Apex


def is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def possible(value):
    """The value, marked unsure: it may be something else, or an object of a derived class with more members."""
    return value._replace(is_sure=False) if isinstance(value, Instance) else value


def members_of(class_node):
    """The methods of a class, and the names that its body assigns."""
    assigned = (target for part in class_node.body if isinstance(part, ast.Assign) for target in part.targets)
    named = (part for part in (*class_node.body, *assigned) if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Name)))
    return {getattr(part, "name", None) or part.id for part in named}


class Names(ast.NodeVisitor):
    """Walks a file and tracks what its names stand for."""

    def __init__(self, rules, has_blocks=True):
        self.rules = rules
        self.uses_apex = False
        self._has_blocks = has_blocks  # False: only single statements are known, so any of them may have been skipped
        self._scopes = collections.defaultdict(dict)  # of functions and the file, by node; None: a name that is not Apex's
        self._chain = [None]
        self._globals = collections.defaultdict(set)  # names that a function declares global
        self._classes = collections.defaultdict(dict)  # values of `self.x`, by class
        self._others = set()  # (class, x) of each `self.x` that also gets other values
        self._class = None
        self._derived = None  # the Apex object that an instance of the current class is
        self._body = None  # the innermost function or class
        self._results = {}  # results of the file's own functions, by name
        self._foreign = set()  # names that other modules or the file itself define

    def _imported(self, local, name, node):
        """Hook: `from apex… import …` bound a name of Apex to `local`."""

    def _visit_decorator(self, node):
        """Hook: the decorator of a function."""
        self.visit(node)

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
        """Binds the target of an assignment: `value` is what the expression `source` stands for."""
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
        """Binds a loop variable: one element of the expression `iterable`."""
        is_numbered = isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "enumerate"
        if is_numbered and iterable.args and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            self._assign(target.elts[0], None, ast.Starred(iterable))
            self._assign_element(target.elts[1], iterable.args[0])
        else:
            self._assign(target, self._element_of(iterable), ast.Starred(iterable))

    def _hides(self, name, source):
        """True if assigning an unknown value replaces the known meaning of a name. False for None, a placeholder, and for expressions of
        the name itself, as in `model = model.cuda()`."""
        if not self._has_blocks or isinstance(self._body, ast.ClassDef) or name in self._globals[self._chain[-1]]:
            return False
        if is_none(source):
            return False
        return not any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(source))

    @contextlib.contextmanager
    def _branch(self):
        """A context for statements that may not run: previous values stay possible afterwards."""
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
        """The value of a subscript of an expression, or of an element in a loop over it."""
        of = self._resolve(node)
        result = isinstance(of, Symbol) and self.rules.result_of(of.name)
        return Instance(result) if result else None

    def _resolve_attribute(self, node):
        """The value before the dot, and the value of the attribute."""
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
        """An object of the Apex class that the current class derives from, unless the current class defines the attribute."""
        return None if self._derived is None or attribute in members_of(self._class) else self._derived

    def _resolve_with_base(self, node):
        return self._resolve_attribute(node) if isinstance(node, ast.Attribute) else (None, self._resolve(node))

    def _resolve_call(self, node):
        prepared = called_by(node)
        if prepared is not node:
            return self._resolve(prepared.func)
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
            local, name = alias.asname or alias.name, f"{node.module}.{alias.name}"
            self._bind(local, Symbol(name))
            self._imported(local, name, alias)

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
        if derived:  # its objects have the base's members
            self._results[node.name] = derived
        outer, (self._class, self._derived, self._body) = (self._class, self._derived, self._body), (node, derived, node)
        self._visit_all(node.body)
        self._class, self._derived, self._body = outer

    def visit_FunctionDef(self, node):
        if not isinstance(self._body, ast.ClassDef):
            self._foreign.add(node.name)
        for each in node.decorator_list:
            self._visit_decorator(each)
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
        """Inside a function: a parameter has its default's value, or an unknown one."""
        values = self._parameters(node.args)
        outer, self._body = self._body, node
        self._chain.append(node)
        self._scopes[node].update(values)
        yield
        self._chain.pop()
        self._body = outer

    def _visit_comprehension(self, node):
        self._chain.append(node)  # a comprehension has its own scope
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
