"""Makes the porting reference from the rules: a page in Markdown. The tests build it and run its code blocks."""
import re
import textwrap

NAME = "porting_reference.md"
WIDTH = 140
HEAD = """\
# Porting reference

Each Python call and C++ function of Apex, with the code that replaces it in a C++ program. `tools/port_check --reference` makes this page
from the rules by which `tools/port_check` checks sources. `apex_cpp/porting.md` is the guide to read first.

In the blocks `amp` is `apex::amp`, `model` and `optimizer` are the program's own objects, `net` and `opt` the handles that
`amp::initialize` returned, and `x` and `y` a batch. The tests compile and run every block. Verdicts:

| verdict | meaning |
|---|---|
| exact | the same name in C++ spelling, with the same arguments and behaviour; a note lists additions. A C++ call works unchanged |
| renamed | the same behaviour under another name or in another form |
| behaves differently | there is a counterpart, and the note says what to check |
| none | no counterpart; the block shows the nearest replacement |

The effort is the work to change one use: none (spelling), low (a line), medium (some lines, with thought), high (a part of the program).
"""


def paragraph(text):
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def cell(text):
    return text.replace("|", "\\|")


def short(rule):
    """The names of a rule, for the table."""
    names = [*rule.names, *(flag for flag in rule.flags if flag not in rule.names)]
    shown = [f"`{name}`" for name in names[:3]]
    return ", ".join(shown) + (", …" if len(names) > 3 else "")


def table(package):
    yield "| | Apex | verdict | effort | here |"
    yield "|---|---|---|---|---|"
    for rule in package.rules:
        yield f"| [{rule.id}](#{rule.id.lower()}) | {cell(short(rule))} | {rule.verdict} | {rule.effort} | {cell(rule.counterpart)} |"


def block(rule, included):
    """A rule's snippet with the hidden code that the tests put around it."""
    if rule.then:
        yield f"<!-- then: {rule.then.strip()} -->"
    elif rule.given:
        yield f"<!-- with: {rule.given.strip()} -->"
    yield "```cpp"
    if rule.include != included:
        yield f"#include <{rule.include}>"
    yield rule.snippet.rstrip()
    yield "```"


def also(rule):
    """The other names that lead to a rule."""
    lists = (("arguments", rule.parameters), ("of its objects", rule.members), ("in C++", rule.cpp), ("headers", rule.includes))
    found = [f"{what}: {', '.join(f'`{name}`' for name in dict.fromkeys(names))}" for what, names in lists if names]
    return "; ".join(found)


def page(rule, included=""):
    """`included`: the header already shown at the top of the chapter."""
    yield f"### {rule.id}"
    yield ""
    yield paragraph(", ".join(f"`{name}`" for name in dict.fromkeys((*rule.names, *rule.flags))))
    yield ""
    yield f"**{rule.verdict}**, effort {rule.effort}: {rule.counterpart}"
    if rule.differs:
        yield ""
        yield paragraph(rule.differs)
    if also(rule):
        yield ""
        yield paragraph(f"<small>{also(rule)}</small>")
    if rule.snippet:
        yield ""
        yield from block(rule, included)
    yield ""


def text(rules):
    lines = [HEAD]
    for package in rules.packages:
        lines += [f"## {package.title}", ""]
        if package.include:
            lines += ["```cpp", f"#include <{package.include}>", "```", ""]
        lines += [paragraph(package.about), "", *table(package), ""]
        for rule in package.rules:
            lines += page(rule, package.include)
    return "\n".join(lines)


def explain(rule):
    """A rule's section as text for a terminal."""
    shown = "\n".join(line for line in page(rule) if not line.startswith(("<!--", "```")))
    return re.sub(r"</?small>|\*\*|^### ", "", shown, flags=re.M).strip()
