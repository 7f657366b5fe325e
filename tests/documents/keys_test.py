"""Compares the tables of keys on pages with the lists in the code: of levels, and of training configs and the tables they make."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
READS = re.compile(r'keys\.(?:choice|integers?|real|flag|text|block)\(\s*"(\w+)"')
FUNCTION = re.compile(r"^void describe(?:_(\w+))?\(ConfigKeys& keys.*?^}", re.M | re.S)
OF_OPTIMIZERS = dict.fromkeys(("betas", "moments", "sgd", "lars", "schedule_free", "muon", "storage", "fused"), "optimizer")
SECTIONS = {**OF_OPTIMIZERS, "precision": None, None: None}


def text_of(path):
    return (ROOT / path).read_text()


def keys_on(page):
    """What the first column of the table below `## Keys` names."""
    section = re.split(r"^## ", text_of(page).split("\n## Keys\n", 1)[1], flags=re.M)[0]
    first = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [key for cell in first for key in re.findall(r"`([\w.]+)`", cell)]


def level_keys():
    return ["opt_level"] + re.findall(r'visit\("(\w+)"', text_of("opt_levels/detail/values.h"))


def config_keys():
    for function in FUNCTION.finditer(text_of("examples/train/config/config.cpp")):
        section = SECTIONS.get(function[1], function[1])
        for key in READS.findall(function[0]):
            yield f"{section}.{key}" if section else key


def columns():
    """The column names of each table that a run writes, by the constant that has them; None where it is no literal."""
    found = {}
    for path in sorted((ROOT / "examples/train").rglob("*.cpp")):
        source = re.sub(r'"\s*\n\s*"', "", path.read_text())
        for name, literal in re.findall(r'\b(k\w+Header)\s*=\s*(?:"([\w,]+)";)?', source):
            found[name] = literal or None
    return found


def files():
    """The tables of a run folder."""
    return set(re.findall(r'"/(\w+\.csv)"', text_of("examples/train/logging/run_folder.h")))


def tables_on(page):
    """The columns of each file that the page's table of them names."""
    return dict(re.findall(r"^\| `(\w+\.csv)` \| `([\w,]+)` \|$", text_of(page), re.M))


failures = 0
for page, known in [("opt_levels/README.md", set(level_keys())), ("examples/train/README.md", set(config_keys()))]:
    named = keys_on(page)
    complaints = [f"{key}: not on the page" for key in sorted(known - set(named))]
    complaints += [f"{key}: not in the code" for key in sorted(set(named) - known)]
    complaints += [f"{key}: twice" for key in sorted(set(named)) if named.count(key) > 1]
    print(f"{page}: {len(named)} keys", *complaints, sep="\n  ")
    failures += len(complaints) or len(known) < 10
known, named = columns(), tables_on("examples/train/README.md")
complaints = [f"{name}: not both on the page and in the code" for name in sorted(files() ^ set(named))]
complaints += [f"{name} is not on the page: {header}" for name, header in known.items() if header not in named.values()]
complaints += [f"{name}: columns that the code does not have" for name, header in named.items() if header not in known.values()]
print(f"examples/train/README.md: {len(named)} tables", *complaints, sep="\n  ")
sys.exit(bool(failures or complaints or not known))
