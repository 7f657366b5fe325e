"""tools/lint as a contributor calls it, on files that are right and files with one mistake."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

LINT = sys.argv.pop(1)
# In two parts: this file is checked, too.
MISSPELT = "rec" + "ieve"
FORMATTED = "int half(int number) { return number / 2; }\n"
WORKFLOW = """on: push
jobs:
  test:
    runs-on: ubuntu-24.04
    steps:
      - {0}: tools/test
"""


class Lint(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="apex_cpp-lint-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def lint(self, *arguments):
        """Exit code and standard output of the call in the folder."""
        ended = subprocess.run([LINT, *arguments], cwd=self.folder, stdout=subprocess.PIPE, text=True)
        return ended.returncode, ended.stdout

    def assert_passes(self, files, *arguments):
        code, output = self.lint(*arguments)
        self.assertEqual(code, 0, output)
        self.assertRegex(output, f"^lint: {files} files, [0-9]+ checks, 0 failed\n$")

    def assert_fails(self, name, text, check, *message_parts):
        self.write(name, text)
        code, output = self.lint(name)
        self.assertEqual(code, 1, output)
        # Where actionlint is installed, it looks at workflows, too.
        failed = [each for each in re.findall(r"(?m)^lint: failed: (.*)", output) if each != "actionlint"]
        self.assertEqual([each.startswith(check) for each in failed], [True], output)
        for part in (name, *message_parts):
            self.assertIn(part, output)

    def test_passes_files_without_a_mistake(self):
        self.write("half.cpp", FORMATTED)
        self.write("half.py", "def half(number):\n    return number / 2\n")
        self.write("half", '#!/usr/bin/env bash\necho "$(($1 / 2))"\n')
        self.write(".github/workflows/test.yml", WORKFLOW.format("run"))
        self.assert_passes(4, ".")

    def test_fails_on_a_file_that_is_not_formatted(self):
        for name in ("half.cpp", "half.h", "half.cu", "half.cuh"):
            self.assert_fails(name, FORMATTED.replace(" {", "{"), "clang-format", f"{name}:1:21: error:")

    def test_formats_by_the_style_of_the_repository(self):
        long_line = f"int sum(int first) {{ return {' + '.join(['first'] * 12)}; }}\n"
        self.assertTrue(100 < len(long_line) <= 128)
        self.write("sum.cpp", FORMATTED.replace(" {", "{") + long_line)
        self.assert_passes(1, "--fix", "sum.cpp")
        self.assertEqual((self.folder / "sum.cpp").read_text(), FORMATTED + long_line)

    def test_fails_on_a_misspelt_word(self):
        self.assert_fails("page.md", f"To {MISSPELT} a value.\n", "codespell", "receive")
        self.assert_fails("half.cpp", f"// {MISSPELT}s a number\n{FORMATTED}", "codespell", "receives")

    def test_fails_on_a_mistake_in_a_script(self):
        self.assert_fails("half.py", "print(number / 2)\n", "flake8", "F821 undefined name 'number'")
        self.assert_fails("half.sh", 'if [ "$1" = 2 ]; then echo 1\n', "shellcheck", "SC1046")
        self.assert_fails("half", "#!/bin/bash\necho $[ $1 / 2 ]\ncase $1 in\n", "shellcheck")

    def test_fails_on_a_key_that_github_does_not_know(self):
        self.assert_fails(".github/workflows/test.yml", WORKFLOW.format("runs"), "the schema of workflows", "$.jobs.test.steps[0]")
        self.assert_fails(".github/ISSUE_TEMPLATE/bug.yml", "name: Bug\ndescription: A bug\nbody: []\n", "the schema of issue forms")

    def test_names_a_path_that_is_missing(self):
        ended = subprocess.run([LINT, "half.cpp"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (1, "", "lint: no such file or folder: half.cpp\n"))

    def test_checks_sources_alone_where_there_is_no_git(self):
        self.write("half.cpp", FORMATTED)
        self.write("build/made.cpp", "int  a;\n")
        self.assert_passes(1, ".")

    @unittest.skipUnless(shutil.which("git"), "git is missing")
    def test_checks_new_files_and_none_that_git_ignores(self):
        subprocess.run(["git", "init", "--quiet", self.folder], check=True)
        self.write(".gitignore", "ignored.cpp\n")
        self.write("ignored.cpp", "int  a;\n")
        self.assert_passes(1, ".")
        self.write("new.cpp", "int  a;\n")
        code, output = self.lint(".")
        self.assertEqual(code, 1)
        self.assertIn("new.cpp:1:4: error:", output)
        self.assertNotIn("ignored.cpp", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
