"""Prints the public names of Apex, for apex_names.txt: record_names.py CHECKOUT... (the revisions are in the head of that file). With --cpp
first, for apex_cpp_names.txt, the C++ functions of its extension modules, each after the file that registers it.

A name is `module.function`, `module.Class`, `module.Class.method`, or one of these with an argument in parentheses; a function of an
extension module is `amp_C.function`.
"""
import ast
import pathlib
import re
import sys

EXTENSIONS = {
    "csrc/amp_C_frontend.cpp": "amp_C",
    "csrc/flatten_unflatten.cpp": "apex_C",
    "csrc/fused_dense.cpp": "fused_dense_cuda",
    "csrc/layer_norm_cuda.cpp": "fused_layer_norm_cuda",
    "csrc/mlp.cpp": "mlp_cuda",
    "csrc/syncbn.cpp": "syncbn",
}


def is_public(name):
    return not name.startswith("_")


def arguments(function):
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return [argument.arg for argument in every if argument.arg not in ("self", "cls")]


def statements(body):
    """What a module defines, under its conditions as well."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            for part in (node.body, node.orelse, *(handler.body for handler in getattr(node, "handlers", ()))):
                yield from statements(part)
        else:
            yield node


def of_class(name, node):
    yield name
    for method in (each for each in node.body if isinstance(each, ast.FunctionDef)):
        if method.name == "__init__":
            yield from (f"{name}({argument})" for argument in arguments(method))
        elif is_public(method.name):
            yield f"{name}.{method.name}"


def of_module(module, is_package, tree):
    for node in statements(tree.body):
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from of_class(f"{module}.{node.name}", node)
        elif isinstance(node, ast.FunctionDef) and is_public(node.name):
            yield f"{module}.{node.name}"
            yield from (f"{module}.{node.name}({argument})" for argument in arguments(node))
        elif isinstance(node, ast.Assign):
            yield from (f"{module}.{target.id}" for target in node.targets if isinstance(target, ast.Name) and is_public(target.id))
        elif isinstance(node, ast.ImportFrom) and is_package and node.level:
            yield from (f"{module}.{alias.asname or alias.name}" for alias in node.names if alias.name != "*")


def of_checkout(root):
    for path in root.glob("apex/**/*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if any(re.match("test|examples|transformer", part) for part in parts):  # transformer has one rule
            continue
        is_package = parts[-1] == "__init__"
        yield from of_module(".".join(parts[:-1] if is_package else parts), is_package, ast.parse(path.read_text(encoding="utf-8")))
    for path, module in EXTENSIONS.items():
        yield from (f"{module}.{name}" for name in re.findall(r'm\.def\(\s*"(\w+)"', (root / path).read_text(encoding="utf-8")))


def cpp_of_checkout(root):
    for path in (path for folder in ("csrc", "apex/contrib/csrc") for path in (root / folder).rglob("*.cpp")):
        for function in re.findall(r'm\.def\(\s*"\w+"\s*,\s*&\s*([\w:]+)', path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(root).as_posix()} {function}"


if __name__ == "__main__":
    names_of, roots = (cpp_of_checkout, sys.argv[2:]) if sys.argv[1] == "--cpp" else (of_checkout, sys.argv[1:])
    print("\n".join(sorted({name for root in roots for name in names_of(pathlib.Path(root))})))
