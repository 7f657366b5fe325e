"""Follows every link between pages of the repository: the file is there, and the heading that the link names stands in it."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = (".github", "apex_cpp", "examples", "kernels", "opt_levels", "tests", "tools")
LINK = re.compile(r"!?\[[^\]]*\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "`", text)


def anchors(text):
    """The names that GitHub gives to headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main():
    pages = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
    links, broken = 0, []
    for page in pages:
        for target, anchor in LINK.findall(without_code(page.read_text())):
            links += 1
            path = (page.parent / target).resolve() if target else page
            if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    print(f"{links} links in {len(pages)} pages, {len(broken)} lead nowhere", *broken, sep="\n")
    return bool(broken) or not links


sys.exit(main())
