"""Machine-readable reports: JSON, and SARIF 2.1.0 for code hosts and editors."""
import json
import urllib.parse

import reference

LEVELS = {"exact": "note", "renamed": "note", "behaves differently": "warning", "none": "error", "unclassified": "error"}


def anchor(rule):
    return f"{reference.NAME}#{rule.id.lower()}"


def write(data, out):
    json.dump(data, out, indent=1, ensure_ascii=False)
    out.write("\n")


def json_finding(finding):
    rule = finding.rule
    return {
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "name": finding.name,
        "kind": finding.kind,
        "rule": rule.id,
        "verdict": rule.verdict,
        "effort": rule.effort,
        "counterpart": finding.counterpart,
        "include": rule.include,
        "snippet": finding.snippet,
        "differs": " ".join(rule.differs.split()),
        "page": anchor(rule),
        "text": finding.text.strip(),
    }


def write_json(scan, out):
    findings = [json_finding(finding) for finding in scan.shown]
    write({"version": 1, "findings": findings, "notes": scan.notes, "totals": scan.totals()}, out)


def sarif_rule(rule):
    return {
        "id": rule.id,
        "shortDescription": {"text": f"{', '.join(rule.names) or 'a name of Apex'}: {rule.verdict}"},
        "fullDescription": {"text": " ".join(f"{rule.counterpart}. {rule.differs}".split())},
        "help": {"text": rule.snippet or rule.counterpart},
        "defaultConfiguration": {"level": LEVELS[rule.verdict]},
        "properties": {"effort": rule.effort, "page": anchor(rule)},
    }


def sarif_result(finding, indices):
    rule = finding.rule
    region = {"startLine": finding.line, "startColumn": finding.column, "snippet": {"text": finding.text}}
    return {
        "ruleId": rule.id,
        "ruleIndex": indices[rule.id],
        "level": LEVELS[rule.verdict],
        "message": {"text": f"{finding.name}: {rule.verdict}, {finding.counterpart} (effort {rule.effort})"},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": urllib.parse.quote(finding.file)}, "region": region}}],
        "partialFingerprints": {"context/v1": finding.context},
    }


def write_sarif(scan, out):
    rules = {finding.rule.id: finding.rule for finding in scan.shown}
    indices = {id: index for index, id in enumerate(rules)}
    driver = {"name": "port_check", "semanticVersion": "1.0.0", "rules": [sarif_rule(rule) for rule in rules.values()]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [sarif_result(finding, indices) for finding in scan.shown],
        "properties": {"totals": scan.totals()},
    }
    write({"version": "2.1.0", "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "runs": [run]}, out)
