"""The porting rules in rules/*.yaml, and the lookup of a rule by name."""
import dataclasses
import functools
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent / "rules"
VERDICTS = ("exact", "renamed", "behaves differently", "none")
EFFORTS = ("none", "low", "medium", "high")


@dataclasses.dataclass(frozen=True)
class Rule:
    """One section of the reference. `names`: Python names as imported; `apex.a.f(x)` for a parameter, `apex.a.C.x =` for an assigned
    member, `apex.a.*` for a whole module. `members`: members of the class's objects. `attributes`: names that identify Apex on any object.
    `cpp`: C++ names; `f()` for a function outside namespaces whose name is so common that it counts only beside other names of the rule,
    `a::b::*` for a whole namespace."""

    id: str
    names: tuple
    verdict: str
    effort: str
    counterpart: str
    parameters: tuple = ()
    members: tuple = ()
    has_all_members: bool = False  # the rules name all members of the class
    attributes: tuple = ()
    flags: tuple = ()
    cpp: tuple = ()
    includes: tuple = ()
    common_names: tuple = ()  # C++ names and headers that other code also uses; they count only beside other uses of Apex
    beside: tuple = ()  # names and headers that are not uses of Apex, but show that `f()` belongs to the rule
    arguments: int = 0  # number of arguments of its C++ functions, if copies with other numbers exist
    differs: str = ""
    include: str = ""  # the counterpart's header
    snippet: str = ""
    given: str = ""  # code that the tests put before the snippet
    then: str = ""  # code that the tests run after a snippet at namespace scope

    def owner_of(self, attribute):
        """The class that has an identifying attribute, without its module; None if the rule names none."""
        return next((name.split(".")[-2] for name in self.names if name.endswith(f".{attribute}")), None)


@dataclasses.dataclass(frozen=True)
class Package:
    """One file of rules: a chapter of the reference."""

    title: str
    include: str
    about: str
    rules: tuple
    modules: dict
    objects: dict
    returns: dict
    other_arguments: str  # id of the rule for calls of a C++ function with another number of arguments


UNCLASSIFIED = Rule("APX000", (), "unclassified", "high", "no rule knows this name")


def read_rule(data, include):
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Rule(**{"include": include, **fields})


def read_package(path):
    import yaml  # imported here so that --help works without it

    data = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    include = data.get("include", "")
    rules = tuple(read_rule(rule, include) for rule in data["rules"])
    names = (data.get(key, {}) for key in ("modules", "objects", "returns"))
    return Package(data["title"], include, data["about"].strip(), rules, *names, data.get("other_arguments", ""))


class Rules:
    """All rules. Names can be looked up as Apex defines them or as its packages export them."""

    def __init__(self, packages):
        self.packages = packages
        self.all = [rule for package in packages for rule in package.rules]
        self.by_id = {rule.id: rule for rule in self.all}
        self._modules = {name: to for package in packages for name, to in package.modules.items()}
        self._objects = {name: to for package in packages for name, to in package.objects.items()}
        self._returns = {name: to for package in packages for name, to in package.returns.items()}
        self._names = {name: rule for rule in self.all for name in rule.names if not name.endswith(".*")}
        self._wildcards = {name[:-2]: rule for rule in self.all for name in rule.names if name.endswith(".*")}
        self.attributes = {name: rule for rule in self.all for name in rule.attributes}
        self.flags = {name: rule for rule in self.all for name in rule.flags}
        self.cpp = {name: rule for rule in self.all for name in rule.cpp}
        self.cpp_words = {name.removesuffix("()").removesuffix("::*").split("::")[-1] for name in self.cpp}
        self._other_arguments = {rule.id: package.other_arguments for package in packages for rule in package.rules if rule.arguments}
        self.includes = {name: rule for rule in self.all for name in rule.includes}
        dotted = [name for name in (*self._names, *self._wildcards) if "." in name]
        self.roots = {name.split(".")[0] for name in (*dotted, *self._wildcards)}
        self._packages = {name.rsplit(".", depth)[0] for name in dotted for depth in range(1, name.count(".") + 1)}
        self._packages |= set(self._modules) | set(self._wildcards) | {"apex"}

    def canonical(self, name):
        """`apex.amp.frontend.initialize` -> `apex.amp.initialize`."""
        for length in range(name.count(".") + 1, 0, -1):
            head, tail = ".".join(name.split(".")[:length]), name.split(".")[length:]
            if head in self._objects:
                return ".".join([self._objects[head], *tail])
            if tail and head in self._modules:
                return self.canonical(".".join([self._modules[head], *tail]))
        return name

    def is_package(self, name):
        return (name in self._packages or self.canonical(name) in self._packages) and self.exact(name) is None

    def exact(self, name):
        """The rule with exactly this name, or else the rule of the closest enclosing wildcard."""
        for form in (name, self.canonical(name)):
            if form in self._names:
                return self._names[form]
        return self._around(name) or self._around(self.canonical(name))

    def _around(self, name):
        parts = name.split(".")
        heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((self._wildcards[head] for head in heads if head in self._wildcards), None)

    def of(self, name):
        """The rule of a name, or of the class that has it as a member (`…FusedAdam.step`); None if there is none."""
        rule, member = self.exact(name), None
        while rule is None and "." in name:
            name, _, member = name.rpartition(".")
            if self.is_package(name):
                return None
            rule = self.exact(name)
        return rule if member is None or (rule and member in rule.members) else None

    def of_member(self, class_name, member, is_assigned=False):
        """The rule of `object.member`; None if the member is not Apex's, but PyTorch's or the program's."""
        own = is_assigned and self._names.get(f"{class_name}.{member} =") or self._names.get(f"{class_name}.{member}")
        of_class = self.exact(class_name)
        return own or (of_class if of_class and member in of_class.members else None)

    def has_all_members(self, class_name):
        """True if the rules name all members of the class."""
        of_class = self.exact(class_name)
        return of_class is not None and of_class.has_all_members

    def of_keyword(self, function, keyword):
        """The rule of a keyword argument: None if the function's rule covers it, UNCLASSIFIED if no rule does."""
        function = self.canonical(function)
        rule = self.exact(function)
        own = self._names.get(f"{function}({keyword})")
        covered = rule is None or keyword in rule.parameters or self._around(function) is rule
        return own or (None if covered else UNCLASSIFIED)

    def of_arguments(self, rule, count):
        """The rule for a call of a C++ function with `count` arguments (None if unknown): the function's own rule if the number matches."""
        return rule if count in (None, rule.arguments) or not rule.arguments else self.by_id[self._other_arguments[rule.id]]

    def is_class(self, name):
        rule = self.exact(name)
        return rule is not None and (bool(rule.members) or name.rsplit(".", 1)[-1][:1].isupper())

    def result_of(self, name):
        return self._returns.get(self.canonical(name))

    def names_in(self, package):
        """The names that `from package import *` binds."""
        heads = (package + ".", self.canonical(package) + ".")
        found = (name for name in self._names if name.startswith(heads) and "(" not in name)
        return {name.split(".")[-1]: name for name in found if name.count(".") == heads[1].count(".")}


@functools.cache
def load():
    return Rules(sorted(map(read_package, FOLDER.glob("*.yaml")), key=lambda package: package.rules[0].id))
