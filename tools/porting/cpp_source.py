"""Finds what C++ and CUDA sources use of Apex: its functions, templates and macros by name, and its headers."""
import functools

import tree_sitter
import tree_sitter_cuda

from findings import finding_at

SUFFIXES = {".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl"}
NAMES = {"identifier", "type_identifier"}


@functools.cache
def parser():
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def leaves(node):
    """The tokens of a tree, in order."""
    stack = [node]
    while stack:
        node = stack.pop()
        if node.type == "preproc_include" or not node.children:
            yield node
        else:
            stack.extend(reversed(node.children))


def tokens(source, line=0, column=0):
    """(kind, text, line, column) of names and included files. A macro's text is source, too."""
    for node in leaves(parser().parse(source).root_node):
        row, before = node.start_point
        at = (row + line, before if row else before + column)
        if node.type == "preproc_include":
            path = node.child_by_field_name("path")
            yield ("include", path.text.decode(errors="replace").strip('"<>') if path else "", *at)
        elif node.type == "preproc_arg":
            yield from tokens(node.text, *at)
        elif node.type in NAMES:
            following = node.next_sibling or (node.parent and node.parent.next_sibling)
            called = following is not None and following.type in ("argument_list", "template_argument_list")
            yield ("call" if called else "reference", node.text.decode(errors="replace"), *at)


def scan(path, text, rules):
    """Findings of one file. No notes: the parser goes on after what it does not understand."""
    lines = text.split("\n")
    found, certain = [], False
    for kind, name, line, column in tokens(text.encode()):
        known = name.rsplit("/", 1)[-1] if kind == "include" else name
        rule = (rules.includes if kind == "include" else rules.cpp).get(known)
        if rule:
            certain = certain or known not in rule.common_names
            found.append(finding_at(path, lines, (line + 1, column), name, kind, rule))
    return (found if certain else []), []
