"""The report for people: one line per use, the counterpart at a rule's first use, the uses that need a look, and the totals."""
from rules import EFFORTS, VERDICTS, UNCLASSIFIED


def line_of(finding):
    rule = finding.rule
    return f"{finding.file}:{finding.line} {rule.id} {rule.verdict} (effort {rule.effort}): {finding.name}"


def counterpart(finding):
    """The replacement of a use, indented."""
    rule = finding.rule
    lines = [f"    {'' if finding.counterpart.startswith('nearest') else '-> '}{finding.counterpart}"]
    if finding.works_unchanged:
        lines[0] += f", include <{rule.include}>"
    elif rule.include:
        lines.append(f"       #include <{rule.include}>")
    lines += [f"       {line}".rstrip() for line in finding.snippet.splitlines()]
    if rule.differs:
        lines.append(f"    note: {' '.join(rule.differs.split())}")
    return lines


def again(findings):
    """The list of findings that need a look; empty if it would hold all or none of the findings."""
    chosen = [finding for finding in findings if finding.needs_a_look]
    if len(chosen) in (0, len(findings)):
        return []
    return ["Check these: they behave differently, or have no counterpart.", *(f"  {line_of(finding)}" for finding in chosen)]


def total_line(totals):
    verdicts = ", ".join(f"{totals['verdicts'][verdict]} {verdict}" for verdict in VERDICTS)
    efforts = ", ".join(f"{totals['efforts'].get(effort, 0)} {effort}" for effort in EFFORTS)
    lines = [
        f"{totals['files']} files read, {totals['files_with_apex']} use Apex",
        f"{totals['calls_classified']} of {totals['calls']} calls classified, {totals['uses_classified']} of {totals['uses']} uses",
        f"verdicts: {verdicts}",
        f"effort: {efforts}",
    ]
    if totals["hidden_by_baseline"]:
        lines.append(f"{totals['hidden_by_baseline']} known findings are hidden by the baseline")
    return lines


def write(scan, out):
    told = set()
    for finding in scan.shown:
        print(line_of(finding), file=out)
        rule, way = finding.rule, (finding.rule.id, finding.works_unchanged)
        if way not in told and rule is not UNCLASSIFIED:
            print("\n".join(counterpart(finding)), file=out)
        told.add(way)
    for line in (*again(scan.shown), *(f"note: {note}" for note in scan.notes), *total_line(scan.totals())):
        print(line, file=out)
