"""Finds uses of Apex in Python sources."""
import ast

from findings import finding_at
from own_names import own_names
from python_names import Instance, Names, Symbol
from python_syntax import DOTTED, called_by, parse
from rules import UNCLASSIFIED

SUFFIXES = {".py"}


class Reader(Names):
    """Walks a file twice: first to learn what names stand for, then to report."""

    def __init__(self, rules, has_blocks=True):
        super().__init__(rules, has_blocks)
        self.reports = []  # (node, name, kind, rule)
        self._imports = {}  # (local name, its meaning) -> the unused import
        self._met = set()  # the parts of the Apex names in the file
        self._reporting = False

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

    def _imported(self, local, name, node):
        self._met.update(name.split("."))
        if not self._reporting:
            self._imports[local, name] = node

    def _visit_decorator(self, node):
        if not self._use(node, "call"):
            self.visit(node)

    def _use(self, node, kind):
        """Reports a name or attribute if it stands for something of Apex. Returns whether it does."""
        if isinstance(node, ast.Call):  # visited separately
            return False
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
        """The rule of an attribute of an Apex object; UNCLASSIFIED if Apex's class certainly should have it."""
        rule = self.rules.of_member(base.class_name, node.attr, isinstance(node.ctx, ast.Store))
        is_unknown = base.is_sure and self._has_blocks and self.rules.has_all_members(base.class_name)
        return rule or (UNCLASSIFIED if is_unknown and not node.attr.endswith("__") else None)

    def _is_of_others(self, class_name):
        """True if the file has a class with this name that is not Apex's."""
        return class_name in self._foreign and class_name not in self._met

    def _use_base(self, node):
        """Reports the expression before the dot as its own use, as in `FP16_Optimizer(sgd).step()`, unless it is a name."""
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
        node = called_by(node)
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
        """The name of the called Apex function, class or method, or None."""
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
        """Reports a name of Apex in a string, as in registries of optimizers."""
        if isinstance(node.value, str) and node.value.startswith("apex.") and DOTTED.fullmatch(node.value):
            rule = self.rules.exact(node.value)
            if rule:
                self.uses_apex = True
                self._report(node, self.rules.canonical(node.value), "reference", rule)

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load):
            self._use(node, "reference")


def scan(path, text, rules):
    """Findings of one file, and notes on how it was parsed."""
    tree, note = parse(text)
    reader = Reader(rules, has_blocks=note is None)
    reader.read(tree)
    lines = text.split("\n")
    own = own_names(tree, {id(node): name for node, name, kind, _ in reader.reports if kind == "call"})
    found = (
        finding_at(path, lines, (node.lineno, node.col_offset), name, kind, rule, own_names=own)
        for node, name, kind, rule in reader.reports
    )
    findings = sorted(set(found), key=lambda finding: (finding.line, finding.column, finding.name))
    return findings, [f"{path}: {note}"] if note and findings else []
