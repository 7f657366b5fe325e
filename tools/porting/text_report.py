"""The report for people: a line for each use, the counterpart where a rule comes up first, and the totals."""
from rules import EFFORTS, VERDICTS, UNCLASSIFIED


def counterpart(rule):
    """What stands in place of a use, indented under it."""
    lines = [f"    {'' if rule.counterpart.startswith('nearest') else '-> '}{rule.counterpart}"]
    if rule.include:
        lines.append(f"       #include <{rule.include}>")
    lines += [f"       {line}".rstrip() for line in rule.snippet.splitlines()]
    if rule.differs:
        lines.append(f"    note: {' '.join(rule.differs.split())}")
    return lines


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
    for finding in scan.findings:
        rule = finding.rule
        print(f"{finding.file}:{finding.line} {rule.id} {rule.verdict} (effort {rule.effort}): {finding.name}", file=out)
        if rule.id not in told and rule is not UNCLASSIFIED:
            print("\n".join(counterpart(rule)), file=out)
        told.add(rule.id)
    for note in scan.notes:
        print(f"note: {note}", file=out)
    print("\n".join(total_line(scan.totals())), file=out)
