"""A program's own names for the names in snippets: `model`, `optimizer`, `net`, `opt`, `loss` and `scaled_loss`."""
import ast
import re

WORD = re.compile(r"(?<![\w.>:])[A-Za-z_]\w*")  # not a member, and not in a namespace


def identifier(node):
    """The name `x` of `x` or `self.x`; None for other expressions."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def arguments(call, *names):
    """The names that the call passes for these arguments, by position or by keyword."""
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    by_place = dict(zip(names, call.args))
    return [identifier(by_place.get(name) or by_name.get(name)) for name in names]


def of_initialize(statement):
    """The names in `net, opt = amp.initialize(model, optimizer)`. If Python uses one name for argument and result, C++ needs two."""
    targets = getattr(statement.targets[0], "elts", ())
    given, made = arguments(statement.value, "models", "optimizers"), [identifier(target) for target in targets]
    if len(made) != 2 or None in (*given, *made):
        return {}
    made = [f"amp_{name}" if name in given else name for name in made]
    return dict(zip(("model", "optimizer", "net", "opt"), (*given, *made)))


def of_scale_loss(item):
    """The names in `with amp.scale_loss(loss, opt) as scaled_loss`."""
    loss, scaled = arguments(item.context_expr, "loss")[0], identifier(item.optional_vars)
    return {} if None in (loss, scaled) else {"loss": loss, "scaled_loss": scaled}


def own_names(tree, called):
    """Pairs of a snippet's name and the file's name for it. `called`: the Apex function that an expression names, by the expression's
    id."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and called.get(id(getattr(node.value, "func", None))) == "apex.amp.initialize":
            found = {**of_initialize(node), **found}
        elif isinstance(node, ast.withitem) and called.get(id(getattr(node.context_expr, "func", None))) == "apex.amp.scale_loss":
            found = {**of_scale_loss(node), **found}
    return tuple(found.items())


def in_snippet(snippet, names):
    """The snippet with the program's own names; unchanged if one of them already has another meaning in the snippet."""
    words = set(WORD.findall(snippet))
    used = {word: name for word, name in names.items() if word in words}
    if len(set(used.values())) < len(used) or not (words - set(used)).isdisjoint(used.values()):
        return snippet
    return WORD.sub(lambda match: used.get(match.group(), match.group()), snippet)
