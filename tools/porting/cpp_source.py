"""Finds uses of Apex in C++ and CUDA sources: functions, templates, macros and namespaces by name, and headers."""
import collections
import functools

from findings import finding_at

SUFFIXES = {".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl"}
NAMES = {"identifier", "type_identifier", "namespace_identifier"}
QUALIFIED = {"qualified_identifier", "nested_namespace_specifier", "template_function", "template_type"}
# Nodes that stand for any number of arguments.
OPEN_ENDED = {"parameter_pack_expansion", "variadic_parameter_declaration", "variadic_parameter", "..."}

Token = collections.namedtuple("Token", "node text line column in_macro")
Use = collections.namedtuple("Use", "name kind key rule arguments line column")


@functools.cache
def parser():
    import tree_sitter  # imported here so that --help works without it
    import tree_sitter_cuda

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def text_of(node):
    return node.text.decode(errors="replace")


def leaves(node):
    """The tokens of a tree, in order."""
    stack = [node]
    while stack:
        node = stack.pop()
        if node.type == "preproc_include" or not node.children:
            yield node
        else:
            stack.extend(reversed(node.children))


def tokens(source, line=0, column=0, in_macro=False):
    """Yields names and included files. The text of a macro counts as source, too."""
    for node in leaves(parser().parse(source).root_node):
        row, before = node.start_point
        at = (row + line, before if row else before + column)
        if node.type == "preproc_include":
            path = node.child_by_field_name("path")
            yield Token(node, text_of(path).strip('"<>') if path else "", *at, in_macro)
        elif node.type == "preproc_arg":
            yield from tokens(node.text, *at, in_macro=True)
        elif node.type in NAMES:
            yield Token(node, text_of(node), *at, in_macro)


def whole(node):
    """The qualified name that contains a name: `a::b::f<int>` for `b`; otherwise the name itself."""
    while node.parent and node.parent.type in QUALIFIED:
        node = node.parent
    return node


def qualified(node):
    """The qualified name up to this part: `a::b` for `b` in `a::b::f`."""
    start = whole(node).start_byte
    source = whole(node).text[: node.end_byte - start].decode(errors="replace")
    return "".join(source.split()).removeprefix("::")


def namespaces(node):
    """The namespaces around a node, outermost first."""
    found = []
    while node := node.parent:
        if node.type == "declaration_list" and node.parent.type == "namespace_definition":
            name = node.parent.child_by_field_name("name")
            found += [text_of(name)] if name else []
    return "::".join(reversed(found))


def list_after(node):
    """The arguments of the call, or the parameters of the declaration, of the function with this name; None if the name is not a
    function's."""
    after = whole(node).next_named_sibling
    return after if after is not None and after.type in ("argument_list", "parameter_list") else None


def is_called(node):
    """True if function or template arguments follow the name."""
    after = (node.next_named_sibling, whole(node).next_named_sibling)
    return any(each is not None and each.type in ("argument_list", "template_argument_list") for each in after)


def is_local(node):
    while node := node.parent:
        if node.type == "compound_statement":
            return True
    return False


def is_registered(node):
    """True if a function's address is taken beside a string: `m.def("name", &function)`."""
    address = node.parent
    beside = address.parent.children if address.type == "pointer_expression" and address.parent else ()
    return any(each.type == "string_literal" for each in beside)


def is_global_function(node):
    """True if an unqualified name is called, declared as a function or registered as one. False for a variable: `Adam adam(params)`."""
    name = whole(node)
    if name.child_by_field_name("scope"):
        return False
    if name.parent.type == "function_declarator":
        return not is_local(name)
    return name.parent.type == "call_expression" and is_called(node) or is_registered(name)


def is_namespace(node):
    return node.type == "namespace_identifier" or whole(node).parent.type == "using_declaration"


def count_arguments(node):
    """The number of arguments of a call or a function declaration; None if the source does not show it."""
    found = list_after(node)
    if found is None or found.has_error:
        return None
    listed = [each for each in found.children if each.type not in ("(", ")", ",", "comment")]
    open_ended = any(each.type in OPEN_ENDED or each.text == b"__VA_ARGS__" for each in listed)
    return None if open_ended else len(listed)


def find_namespace(node, rules):
    """The name of a namespace in the report, `a::b::f` if a member is used, and the key of its rule if it is Apex's, `a::b::*`."""
    path = [*filter(None, namespaces(node).split("::")), *qualified(node).split("::")]
    inner = ("::".join(path[start:]) for start in range(len(path)))  # Apex may be nested in one of the program's namespaces
    known = next((name for name in inner if f"{name}::*" in rules.cpp), None)
    used = text_of(whole(node)).split("<")[0] if whole(node).type == "qualified_identifier" else known
    return used, f"{known}::*"


def find_key(token, rules):
    """The name of a token in the report, and its key in the rules, or None if no rule matches."""
    name, node = token.text, token.node
    if node.type == "preproc_include":
        return name, name.rsplit("/", 1)[-1]
    if name not in rules.cpp_words:
        return name, None
    if name in rules.cpp and node.type != "namespace_identifier":
        return name, name
    if is_namespace(node):
        return find_namespace(node, rules)
    return name, f"{name}()" if is_global_function(node) else None


def find_use(token, rules):
    """The Use of a token, or None."""
    name, key = find_key(token, rules)
    is_include = token.node.type == "preproc_include"
    rule = (rules.includes if is_include else rules.cpp).get(key)
    if rule is None:
        return None
    arguments = None if is_include or token.in_macro else count_arguments(token.node)
    kind = "include" if is_include else "call" if is_called(token.node) else "reference"
    return Use(name, kind, key, rule, arguments, token.line, token.column)


def recognised(uses, words):
    """The uses that belong to Apex. Names that other code also uses count only in files with other uses of Apex. Functions with such names,
    `f()`, count only beside other uses of their rule or beside one of its telltale words."""
    telling = {use.rule.id for use in uses if use.key not in use.rule.common_names and not use.key.endswith("()")}
    for use in uses:
        beside = use.rule.id in telling or not words.isdisjoint(use.rule.beside)
        if beside if use.key.endswith("()") else telling:
            yield use


def scan(path, text, rules):
    """Findings of one file. There are no notes, because the parser continues after code that it cannot parse."""
    lines = text.split("\n")
    every = list(tokens(text.encode()))
    uses = [use for use in (find_use(token, rules) for token in every) if use]
    seen = {use.key: use.arguments for use in reversed(uses) if use.arguments is not None}  # argument counts at each first occurrence
    found = []
    for use in recognised(uses, {token.text for token in every} if uses else set()):
        rule = rules.of_arguments(use.rule, seen.get(use.key) if use.arguments is None else use.arguments)
        place, unchanged = (use.line + 1, use.column), use.kind != "include" and rule.verdict == "exact"
        found.append(finding_at(path, lines, place, use.name, use.kind, rule, works_unchanged=unchanged))
    return found, []
