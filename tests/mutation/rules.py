"""Which small faults a C++ source can have. A mutant is a span of the source and an expression that has both, the original and the fault:
APEX_MUTANT(n) of mutants.h chooses at run time, so one build has all mutants."""
import re
from typing import NamedTuple

import tree_sitter
import tree_sitter_cuda

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))

LIMIT = 1 << 14  # of the numbers: kLimit of mutants.h

OTHER_BOUND = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OTHER_SIGN = {"+": "-", "-": "+", "*": "/", "/": "*"}
OTHER_LOGIC = {"&&": "||", "||": "&&"}
OTHER_DTYPE = {"kFloat": "kHalf", "kHalf": "kBFloat16", "kBFloat16": "kHalf", "kDouble": "kFloat"}

# The compiler evaluates what is in these nodes, or no statement can be there.
CONSTANT = {"template_argument_list", "template_parameter_list", "static_assert_declaration", "enumerator", "array_declarator",
            "new_declarator", "preproc_if", "preproc_def", "preproc_function_def", "preproc_call", "preproc_include",
            "decltype", "noexcept", "attribute_declaration", "attribute_specifier", "alias_declaration", "concept_definition",
            "requires_clause", "bitfield_clause", "optional_parameter_declaration", "trailing_return_type", "sizeof_expression"}
LEAVES = {"return_statement", "continue_statement", "break_statement", "throw_statement"}


class Mutant(NamedTuple):
    rule: str
    start: int  # bytes of the source
    end: int
    line: int
    original: str
    fault: str  # for people
    code: str  # with @ for the mutant's number


def text_of(node):
    return node.text.decode()


def is_constant(node):
    """Whether the compiler must know the value: the node itself is in a constexpr function, declaration or condition."""
    if node.type in CONSTANT:
        return True
    if node.type in ("declaration", "field_declaration", "function_definition", "template_function", "init_declarator"):
        declarator = node.child_by_field_name("declarator") or node.child_by_field_name("body")
        head = text_of(node)[:declarator.start_byte - node.start_byte] if declarator else text_of(node)[:200]
        return bool(re.search(r"\b(constexpr|consteval|alignas)\b", head))
    return node.type == "if_statement" and bool(re.match(r"if\s+constexpr", text_of(node)[:20]))


def one_of(node, rule, fault, code):
    return Mutant(rule, node.start_byte, node.end_byte, node.start_point[0] + 1, text_of(node), fault, code)


def choice(node, rule, fault):
    return one_of(node, rule, fault, f"(APEX_MUTANT(@) ? ({fault}) : ({text_of(node)}))")


def of_operator(node):
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    operator = text_of(node.child_by_field_name("operator"))
    for rule, other in (("bound", OTHER_BOUND), ("sign", OTHER_SIGN), ("logic", OTHER_LOGIC)):
        if operator not in other:
            continue
        both = text_of(left) + text_of(right)
        if rule == "sign" and ('"' in both or "string" in both or "path" in both):
            return  # texts are joined
        yield choice(node, rule, f"{text_of(left)} {other[operator]} {text_of(right)}")


def of_condition(node, alternative, consequence):
    """An if without a declaration in its condition."""
    inside = [child for child in node.named_children if child.type != "comment"]
    if len(inside) != 1 or inside[0].type in ("declaration", "init_statement"):
        return
    value = inside[0]
    first = consequence
    if consequence.type == "compound_statement" and consequence.named_child_count == 1:
        first = consequence.named_children[0]
    if first.type in LEAVES and alternative is None:
        yield one_of(value, "guard", "false", f"static_cast<bool>({text_of(value)}) && !APEX_MUTANT(@)")
    else:
        yield one_of(value, "branch", f"!({text_of(value)})", f"static_cast<bool>({text_of(value)}) != APEX_MUTANT(@)")


def of_statement(node):
    value = node.named_children[0] if node.named_child_count else None
    if value is None or value.type not in ("call_expression", "assignment_expression", "update_expression"):
        return
    if re.match(r"(TORCH_|AT_|C10_|APEX_|static_assert|EXPECT|std::printf)", text_of(value)):
        return  # macros that declare or check
    yield one_of(node, "statement", "nothing", "{ if (!APEX_MUTANT(@)) " + text_of(node) + " }")


def of_call(node):
    arguments = node.child_by_field_name("arguments")
    if not re.fullmatch(r"TORCH_CHECK\w*", text_of(node.child_by_field_name("function"))) or arguments.type != "argument_list":
        return
    condition = arguments.named_children[0]
    if condition.type not in ("string_literal", "concatenated_string"):
        yield one_of(condition, "check", "true", f"APEX_MUTANT(@) || ({text_of(condition)})")


def of_number(node):
    if re.fullmatch(r"[0-9]{1,6}", text_of(node)):
        yield choice(node, "off by one", str(int(text_of(node)) + 1))


def of_name(node):
    name = text_of(node)
    match = re.fullmatch(r"((?:at|torch|c10)::)(k\w+)", name)
    if match and match[2] in OTHER_DTYPE:
        yield choice(node, "dtype", match[1] + OTHER_DTYPE[match[2]])


def of_lock(node):
    match = re.fullmatch(r"(?:const )?std::(?:lock_guard|scoped_lock)(?:<[^;]*>)? (\w+)\((.*)\);", text_of(node))
    if match:
        yield one_of(node, "lock", "nothing", f"const ::apex_mutants::Lock {match[1]}({match[2]}, APEX_MUTANT(@));")


def of_node(node):
    if node.type == "binary_expression":
        return of_operator(node)
    if node.type == "if_statement":
        parts = [node.child_by_field_name(name) for name in ("condition", "alternative", "consequence")]
        return of_condition(*parts)
    if node.type == "conditional_expression":
        condition = node.child_by_field_name("condition")
        return iter([one_of(condition, "branch", f"!({text_of(condition)})", f"(static_cast<bool>({text_of(condition)}) != APEX_MUTANT(@))")])
    by_type = {"expression_statement": of_statement, "call_expression": of_call, "number_literal": of_number,
               "qualified_identifier": of_name, "declaration": of_lock}
    return by_type[node.type](node) if node.type in by_type else iter(())


def candidates(source):
    """All mutants of a source, in bytes, in the order of the source. They may overlap."""
    found = []

    def visit(node):
        if is_constant(node) or node.has_error and not node.children:
            return
        found.extend(of_node(node))
        for index, child in enumerate(node.children):
            field = node.field_name_for_child(index)
            if node.type == "case_statement" and field == "value" or node.type == "field_declaration" and field == "default_value":
                continue
            if child.type == "initializer_list" and node.type != "return_statement":
                continue  # a number that is not constant may not fit
            visit(child)

    def visit_functions(node):
        if is_constant(node):
            return
        if node.type == "function_definition":
            body = node.child_by_field_name("body")
            if body is not None:
                visit(body)
            return
        for child in node.children:
            visit_functions(child)

    visit_functions(PARSER.parse(source).root_node)
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end))


def apply(source, mutants):
    """The source with all these mutants, by number. They must not overlap."""
    parts, place = [], 0
    for number, mutant in sorted(mutants.items(), key=lambda item: item[1].start):
        assert mutant.start >= place, "mutants overlap"
        parts += [source[place:mutant.start], mutant.code.replace("@", str(number)).encode()]
        place = mutant.end
    return b"".join(parts) + source[place:]
