"""What the tests of tools/port_check share: a folder of sources, the tool run on it, and its findings."""
import json
import pathlib
import subprocess
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/port_check"


def run(*arguments, cwd=None):
    return subprocess.run([TOOL, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300)


class ToolTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    def check(self, *arguments, code=None):
        """The tool's JSON report on the folder."""
        result = run(".", "--format", "json", *arguments, cwd=self.folder)
        self.assertIn(result.returncode, (0, 1) if code is None else (code,), result.stderr)
        return json.loads(result.stdout)

    def findings(self, text, name="train.py"):
        """(line, rule, name) of what the tool finds in one source."""
        self.write(name, text)
        return [(found["line"], found["rule"], found["name"]) for found in self.check()["findings"]]

    def rules(self, text, name="train.py"):
        """(line, rule) of the same."""
        return [(line, rule) for line, rule, _ in self.findings(text, name)]
