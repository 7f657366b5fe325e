"""Checks the lists of installed headers: headers.py ROOT [--installed DIR] -- COMMAND...

COMMAND prints the lists, one header a line: `public PATH` or `private PATH`. Public headers are those at the top of a package. The private
list has exactly the other headers that public headers include, directly or not, and each names in its second line the public header to
include instead. With --installed the headers under DIR are exactly the listed ones."""
import argparse
import pathlib
import re
import subprocess
import sys

INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]((?:apex_cpp|opt_levels|kernels)/[^>\"]+)[>\"]", re.M)
PRIVATE = re.compile(r"#pragma once\n// IWYU pragma: private, include <([^>]+)>\n")
TOP = re.compile(r"(apex_cpp/|apex_cpp/[^/]+/|opt_levels/|kernels/)[^/]+$")
SUFFIXES = (".h", ".cuh")


def read(root, header):
    path = root / header
    return path.read_text() if path.exists() else ""


def included_by(root, roots):
    """Every header that `roots` include, directly or not, with the first header that was seen to include it."""
    found, waiting = {}, list(roots)
    while waiting:
        header = waiting.pop()
        for used in INCLUDE.findall(read(root, header)):
            if used not in found and used not in roots:
                found[used] = header
                waiting.append(used)
    return found


def top_headers(root):
    """The headers at the top of opt_levels, of apex_cpp, and of each package: a folder beside a header of the same name."""
    packages = [header.with_suffix("") for header in root.glob("apex_cpp/*.h") if header.with_suffix("").is_dir()]
    for folder in [root / "apex_cpp", root / "opt_levels", *packages]:
        yield from (path.relative_to(root).as_posix() for path in folder.glob("*") if path.suffix in SUFFIXES)


def list_complaints(root, public, private):
    yield from (f"{header} is listed and does not exist" for header in public + private if not (root / header).exists())
    yield from (f"{header} is listed twice" for header in set(public + private) if (public + private).count(header) > 1)
    yield from (f"{header} is listed as public and is not at the top of a package" for header in public if not TOP.match(header))
    yield from (f"{header} stands at the top of a package and is not listed as public" for header in top_headers(root) if header not in public)


def include_complaints(root, public, private):
    needed = included_by(root, public)
    yield from (f"{header} is included by {user} and is not listed" for header, user in needed.items() if header not in private)
    yield from (f"{header} is listed and no public header includes it" for header in private if header not in needed)
    for header in private:
        line = PRIVATE.match(read(root, header))
        if not line or line.group(1) not in public:
            yield f"{header} does not say in its second line which public header to include"


def install_complaints(installed, listed):
    headers = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    yield from (f"{header} is installed and not listed" for header in sorted(headers - listed))
    yield from (f"{header} is listed and not installed" for header in sorted(listed - headers))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--installed", type=pathlib.Path)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    lines = subprocess.run(arguments.command, check=True, capture_output=True, text=True).stdout.split("\n")
    public = [line.split()[1] for line in lines if line.startswith("public ")]
    private = [line.split()[1] for line in lines if line.startswith("private ")]
    complaints = [*list_complaints(arguments.root, public, private), *include_complaints(arguments.root, public, private)]
    if arguments.installed:
        complaints += install_complaints(arguments.installed, {*public, *private})
    print(f"{len(public)} public headers, {len(private)} private ones", *complaints, sep="\n")
    sys.exit(bool(complaints) or not public)


main()
