"""The pages for contributors name files and folders that there are, and every module."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("apex_cpp/architecture.md", "CONTRIBUTING.md")


def paths(text):
    """Code spans that are paths from the root of the repository."""
    tops = "apex_cpp|examples|kernels|opt_levels|tests|tools"
    return re.findall(rf"`((?:{tops})/[\w./*]*|opt_levels|kernels)`", text)


def modules():
    """The modules of tests/layering/layering.cmake."""
    text = (ROOT / "tests/layering/layering.cmake").read_text()
    names = re.findall(r"^  module\(([^ )]+)", text, re.M)
    return [name.replace("${amp}", "apex_cpp/amp") for name in names]


complaints, named = [], set()
for page in PAGES:
    for path in paths((ROOT / page).read_text()):
        named.add(path.rstrip("/"))
        if not list(ROOT.glob(path.rstrip("/"))) and not (ROOT / f"{path}.h").exists():  # a folder, or the header of a module
            complaints.append(f"{page} names {path}, which there is not")
complaints += [f"{PAGES[0]} does not name the module {module}" for module in modules() if module not in named]
print(f"{len(named)} paths, {len(modules())} modules", *complaints, sep="\n")
sys.exit(bool(complaints) or len(modules()) < 20)
