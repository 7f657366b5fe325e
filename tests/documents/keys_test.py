"""Compares the tables of keys on pages with the lists in the code: of levels, and of training configs and the tables they make."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
READS = re.compile(r'keys\.(?:choice|integers?|real|flag|text|block)\("(\w+)"')
FUNCTION = re.compile(r"^void describe(?:_(\w+))?\(ConfigKeys& keys.*?^}", re.M | re.S)
SECTIONS = {"moments": "optimizer", "sgd": "optimizer", "fused": "optimizer", "precision": None, None: None}


def text_of(path):
    return (ROOT / path).read_text()


def keys_on(page):
    """What the first column of the table below `## Keys` names."""
    section = re.split(r"^## ", text_of(page).split("\n## Keys\n", 1)[1], flags=re.M)[0]
    first = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [key for cell in first for key in re.findall(r"`([\w.]+)`", cell)]


def level_keys():
    return ["opt_level"] + re.findall(r'visit\("(\w+)"', text_of("opt_levels/detail/option_fields.h"))


def config_keys():
    for function in FUNCTION.finditer(text_of("examples/train/config/config.cpp")):
        section = SECTIONS.get(function[1], function[1])
        for key in READS.findall(function[0]):
            yield f"{section}.{key}" if section else key


def columns():
    source = re.sub(r'"\s*\n\s*"', "", text_of("examples/train/records/metrics.cpp"))
    return re.findall(r'constexpr const char\* k\w+Header\s*=\s*"([\w,]+)";', source)


failures = 0
for page, known in [("opt_levels/README.md", set(level_keys())), ("examples/train/README.md", set(config_keys()))]:
    named = keys_on(page)
    complaints = [f"{key}: not on the page" for key in sorted(known - set(named))]
    complaints += [f"{key}: not in the code" for key in sorted(set(named) - known)]
    complaints += [f"{key}: twice" for key in sorted(set(named)) if named.count(key) > 1]
    print(f"{page}: {len(named)} keys", *complaints, sep="\n  ")
    failures += len(complaints) or len(known) < 10
found = columns()
missing = [header for header in found if f"`{header}`" not in text_of("examples/train/README.md")]
print(f"examples/train/README.md: {len(found)} tables", *missing, sep="\n  not on the page: ")
sys.exit(bool(failures or missing or len(found) != 4))
