"""Findings in the sources, and the baseline file of known findings."""
import collections
import dataclasses
import json

import rules
from own_names import in_snippet
from rules import UNCLASSIFIED, Rule

VERDICTS = (*rules.VERDICTS, UNCLASSIFIED.verdict)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One use of Apex: its name, its place and its rule. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    name: str
    kind: str
    rule: Rule
    text: str  # the source line
    works_unchanged: bool = False  # the rule's header has the same name with the same arguments
    own_names: tuple = ()  # pairs: a snippet's name, and the file's name for it

    @property
    def counterpart(self):
        return "unchanged" if self.works_unchanged else self.rule.counterpart

    @property
    def snippet(self):
        return "" if self.works_unchanged else in_snippet(self.rule.snippet, dict(self.own_names))

    @property
    def needs_a_look(self):
        return self.blocks or self.rule.verdict == "behaves differently"

    @property
    def blocks(self):
        return self.rule.verdict in ("none", UNCLASSIFIED.verdict)

    @property
    def context(self):
        """The identity of a finding in a baseline. It has no line number, which changes when other lines are inserted."""
        return f"{self.file}\t{self.rule.id}\t{self.name}\t{' '.join(self.text.split())}"


def finding_at(file, lines, place, name, kind, rule, **more):
    """A Finding at `place`: a line from 1, and the number of bytes before the column, as parsers count. `more`: its other members."""
    line, before = place
    text = lines[line - 1] if line <= len(lines) else ""
    return Finding(file, line, len(text.encode()[:before].decode(errors="ignore")) + 1, name, kind, rule, text, **more)


@dataclasses.dataclass
class Scan:
    """All findings, the number of files, and notes on files."""

    files: int = 0
    findings: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    unread: list = dataclasses.field(default_factory=list)  # files and folders that could not be read, with the reasons
    hidden: int = 0  # number of findings in the baseline
    only: tuple = VERDICTS  # verdicts to show

    @property
    def shown(self):
        return [finding for finding in self.findings if finding.rule.verdict in self.only]

    def cannot_read(self, error):
        """Notes an OSError."""
        line = f"cannot read {error.filename}: {error.strerror}"
        self.unread.append(line)
        self.notes.append(line)

    def totals(self):
        """Counts for the end of a report and for JSON."""
        verdicts = collections.Counter(finding.rule.verdict for finding in self.findings)
        calls = [finding for finding in self.findings if finding.kind == "call"]
        classified = lambda found: sum(finding.rule is not UNCLASSIFIED for finding in found)
        return {
            "files": self.files,
            "files_with_apex": len({finding.file for finding in self.findings}),
            "calls": len(calls),
            "calls_classified": classified(calls),
            "uses": len(self.findings),
            "uses_classified": classified(self.findings),
            "hidden_by_baseline": self.hidden,
            "verdicts": {verdict: verdicts[verdict] for verdict in VERDICTS},
            "efforts": dict(sorted(collections.Counter(finding.rule.effort for finding in self.findings).items())),
        }


def write_baseline(path, findings):
    known = collections.Counter(finding.context for finding in findings)
    path.write_text(json.dumps({"version": 1, "known": dict(sorted(known.items()))}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_baseline(path):
    """Errors: ValueError if the file is not a baseline."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] == 1 and all(isinstance(count, int) for count in data["known"].values()):
            return collections.Counter(data["known"])
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{path} is not a baseline of this tool: make one with --write-baseline")


def hide_known(scan, known):
    """Removes findings that are in the baseline, each as often as the baseline has it."""
    left, shown = known.copy(), []
    for finding in scan.findings:
        if left[finding.context] > 0:
            left[finding.context] -= 1
        else:
            shown.append(finding)
    scan.hidden = len(scan.findings) - len(shown)
    scan.findings = shown
