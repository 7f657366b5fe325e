"""A program's own names for what snippets call `model`, `optimizer`, `net`, `opt`, `loss` and `scaled_loss`."""
import ast
import re

WORD = re.compile(r"(?<![\w.>:])[A-Za-z_]\w*")  # no member, and nothing in a namespace


def identifier(node):
    """`x` of `x` and of `self.x`; None of other expressions."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def arguments(call, *names):
    """What the call's first arguments, by place or by these names, are called."""
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    by_place = dict(zip(names, call.args))
    return [identifier(by_place.get(name) or by_name.get(name)) for name in names]


def of_initialize(statement):
    """Of `net, opt = amp.initialize(model, optimizer)`. A name that stands for both the argument and the result in Python is two in C++."""
    targets = getattr(statement.targets[0], "elts", ())
    given, made = arguments(statement.value, "models", "optimizers"), [identifier(target) for target in targets]
    if len(made) != 2 or None in (*given, *made):
        return {}
    made = [f"amp_{name}" if name in given else name for name in made]
    return dict(zip(("model", "optimizer", "net", "opt"), (*given, *made)))


def of_scale_loss(item):
    """Of `with amp.scale_loss(loss, opt) as scaled_loss`."""
    loss, scaled = arguments(item.context_expr, "loss")[0], identifier(item.optional_vars)
    return {} if None in (loss, scaled) else {"loss": loss, "scaled_loss": scaled}


def own_names(tree, called):
    """What the file calls the names of snippets, in pairs. `called`: the name of Apex's function that an expression stands for, by the
    expression's id."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and called.get(id(getattr(node.value, "func", None))) == "apex.amp.initialize":
            found = {**of_initialize(node), **found}
        elif isinstance(node, ast.withitem) and called.get(id(getattr(node.context_expr, "func", None))) == "apex.amp.scale_loss":
            found = {**of_scale_loss(node), **found}
    return tuple(found.items())


def in_snippet(snippet, names):
    """The snippet with a program's own names; as it is where one of these means something else in it."""
    words = set(WORD.findall(snippet))
    used = {word: name for word, name in names.items() if word in words}
    if len(set(used.values())) < len(used) or not (words - set(used)).isdisjoint(used.values()):
        return snippet
    return WORD.sub(lambda match: used.get(match.group(), match.group()), snippet)
