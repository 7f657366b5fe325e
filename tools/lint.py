"""Checks files with the linters beside its interpreter: lint.py [--fix] [PATH]... (tools/lint installs them and calls it)."""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = pathlib.Path(sys.executable).parent
CLANG_FORMAT = [PROGRAMS / "clang-format", f"--style=file:{ROOT}/.clang-format"]
# False alarms of shellcheck: variables that lib.sh sets or that `read` skips, words that are split on purpose, `cd` under `set -e`,
# and `x= y=`.
SHELL_CODES = "SC1007,SC1091,SC2034,SC2046,SC2086,SC2154,SC2164"
BUILT = {"build", "dist", "runs", "__pycache__"}  # folders that are not sources, where git cannot tell


def files_in(folder):
    """The files of a folder: in a git clone the tracked ones, and new ones that git does not ignore."""
    listed = subprocess.run(["git", "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True) if shutil.which("git") else None
    if listed and listed.returncode == 0:
        return [folder / name for name in listed.stdout.split("\0") if name]
    return [path for path in folder.rglob("*")
            if not any(part in BUILT or part == ".git" for part in path.relative_to(folder).parts)]


def is_cxx(path):
    return path.suffix in {".cpp", ".h", ".cu", ".cuh"}


def is_text(path):
    return path.suffix not in {".png", ".safetensors"}


def runs_with(*interpreters):
    """A test of files without an extension: does the first line name one of these interpreters?"""
    def test(path):
        if path.suffix:
            return False
        with open(path, "rb") as file:
            first = file.readline(100).decode(errors="replace").split()
        return bool(first) and first[0].startswith("#!") and first[-1].rsplit("/", 1)[-1] in interpreters
    return test


def is_python(path):
    return path.suffix == ".py" or runs_with("python3")(path)


def is_shell(path):
    return path.suffix == ".sh" or runs_with("bash", "sh")(path)


def is_workflow(path):
    return path.match(".github/workflows/*.yml")


def is_form(path):
    return path.match(".github/ISSUE_TEMPLATE/*.yml") and path.name != "config.yml"


def module(name, *arguments):
    return [sys.executable, "-m", name, *arguments]


def schema(name):
    return module("check_jsonschema", "--default-filetype", "yaml", "--builtin-schema", f"vendor.{name}")


def checks():
    """What is checked: name, test of a file, command that the files are given to."""
    yield "clang-format (tools/lint --fix repairs it)", is_cxx, [*CLANG_FORMAT, "--dry-run", "-Werror"]
    yield "codespell (words that are right: .codespellrc)", is_text, module("codespell_lib")
    yield "flake8", is_python, module("flake8", "--isolated", "--select=E9,F")
    if (PROGRAMS / "shellcheck").exists():  # PyPI has it for x86_64 alone
        yield "shellcheck", is_shell, [PROGRAMS / "shellcheck", "--shell=bash", "--severity=warning", "--format=gcc", f"--exclude={SHELL_CODES}"]
    yield "the schema of workflows", is_workflow, schema("github-workflows")
    yield "the schema of issue forms", is_form, schema("github-issue-forms")
    yield "the schema of citations", lambda path: path.name == "CITATION.cff", schema("citation-file-format")
    if shutil.which("actionlint"):
        yield "actionlint", is_workflow, ["actionlint", "-no-color", f"-shellcheck={PROGRAMS}/shellcheck"]
    if shutil.which("hadolint"):  # Debian's packages of a release change in patches alone, so their versions are not pinned
        yield "hadolint", lambda path: path.name == "Dockerfile", ["hadolint", "--no-color", "--ignore", "DL3008"]


def parts(files):
    """The files in as many parts as there are cores, of 50 files or more."""
    count = min(os.cpu_count(), len(files) // 50 + 1)
    return [files[i::count] for i in range(count)]


def run(command, files):
    """The exit code of the command with the files, and what it prints, without the source lines that clang-format quotes."""
    ended = subprocess.run([*command, *files], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    lines = ended.stdout.splitlines(keepends=True)
    if command[0] == CLANG_FORMAT[0]:
        lines = [line for line in lines if "error:" in line]
    return ended.returncode, "".join(lines)


def shown(path):
    """The path as reports print it: relative to the repository if it is inside."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def main(arguments):
    fix = arguments[:1] == ["--fix"]
    paths = [pathlib.Path(path) for path in arguments[fix:]] or [ROOT]
    found = {file for path in paths for file in (files_in(path) if path.is_dir() else [path])}
    files = sorted(shown(file) for file in found if file.is_file())
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if fix:
            list(pool.map(lambda part: run([*CLANG_FORMAT, "-i"], part), parts([file for file in files if is_cxx(file)])))
        started = []
        for name, concerns, command in checks():
            if concerned := [file for file in files if concerns(ROOT / file)]:
                started.append((name, [pool.submit(run, command, part) for part in parts(concerned)]))
        failed = 0
        for name, runs in started:
            ended = [each.result() for each in runs]
            if any(code for code, _ in ended):
                failed += 1
                print(*(output for _, output in ended), sep="", end="")
                print(f"lint: failed: {name}")
    print(f"lint: {len(files)} files, {len(started)} checks, {failed} failed")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
