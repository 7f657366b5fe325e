"""Reads Apex sources and reports the counterpart of each use of Apex (tools/porting/README.md)."""
import argparse
import os
import pathlib
import signal
import sys
import time

import cpp_source
import data_reports
import findings
import python_source
import reference
import rules
import text_report

READERS = {suffix: reader.scan for reader in (python_source, cpp_source) for suffix in reader.SUFFIXES}
WRITERS = {"text": text_report.write, "json": data_reports.write_json, "sarif": data_reports.write_sarif}
PORTED, NOT_PORTED, NOT_CHECKED = 0, 1, 2
EXIT_CODES = "exit code: 0 every use has a counterpart, 1 some have none or are unknown, 2 not everything was checked"


class Usage(Exception):
    """An error that the caller must fix."""


class Progress:
    """Shows the number of files read on standard error: on a terminal in one rewritten line, otherwise every 15 s."""

    def __init__(self, total):
        self._total, self._told, self._live = total, time.monotonic(), sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def __call__(self, done):
        now = time.monotonic()
        if self._live and (now - self._told > 0.1 or done == self._total):
            end = "\r\033[K" if done == self._total else ""
            print(f"\r\033[Kport_check: {done} of {self._total} files read{end}", end="", file=sys.stderr, flush=True)
        elif not self._live and now - self._told > 15:
            print(f"port_check: {done} of {self._total} files read", file=sys.stderr)
        else:
            return
        self._told = now


def is_hidden(name):
    return name.startswith(".") or name == "__pycache__"


def walk(root, onerror):
    """(folder, names) of a folder and those in it, except hidden ones, each once. Links to folders are followed last, so that a folder
    inside keeps its own name."""
    seen, roots = set(), [root]
    for each in roots:
        for folder, folders, names in os.walk(each, onerror=onerror):
            status = os.stat(folder)
            identity = status.st_dev, status.st_ino
            if identity in seen:
                folders.clear()
                continue
            seen.add(identity)
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            roots += filter(os.path.islink, [os.path.join(folder, name) for name in folders])
            yield folder, names


def sources(paths, onerror):
    """The files to read: named files, and files with a known suffix in named folders, except hidden ones. `onerror` gets the OSError of an
    unreadable folder."""
    for path in paths:
        if path.is_dir():
            for folder, names in walk(path, onerror):
                known = sorted(name for name in names if pathlib.Path(name).suffix in READERS and not is_hidden(name))
                yield from (pathlib.Path(folder, name) for name in known)
        elif not path.exists():
            raise Usage(f"no such file or folder: {path}")
        elif path.suffix not in READERS:
            raise Usage(f"{path} is not a source that this tool reads ({' '.join(sorted(READERS))})")
        else:
            yield path


def read(path):
    """A file's text, with newlines as line ends. Bytes that are not UTF-8 are replaced, and a byte order mark is removed."""
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def shown(path):
    """A file's name in reports and baselines: relative to the current folder if it is inside."""
    relative = os.path.relpath(path)
    return path.as_posix() if relative.startswith("..") else pathlib.Path(relative).as_posix()


def scan(paths, known_rules):
    """Reads all readable files. `unread` lists the others, each with the reason."""
    result = findings.Scan()
    files = {shown(path): path for path in sources(paths, result.cannot_read)}
    if not files and not result.unread:
        raise Usage(f"no Python, C++ or CUDA sources in {', '.join(map(str, paths))}")
    progress = Progress(len(files))
    for done, (name, path) in enumerate(files.items(), 1):
        try:
            found, notes = READERS[path.suffix](name, read(path), known_rules)
        except OSError as error:
            result.cannot_read(error)
        else:
            result.findings += found
            result.notes += notes
            result.files += 1
        progress(done)
    return result


def verdicts(text):
    """The verdicts in a list such as `none,behaves-differently`."""
    chosen = [each.strip().replace("-", " ") for each in text.split(",")]
    for each in chosen:
        if each not in findings.VERDICTS:
            known = ", ".join(verdict.replace(" ", "-") for verdict in findings.VERDICTS)
            raise argparse.ArgumentTypeError(f"unknown verdict '{each}': give {known}, or several with commas between them")
    return tuple(chosen)


def arguments(argv):
    parser = argparse.ArgumentParser(prog="tools/port_check", description=__doc__, epilog=EXIT_CODES)
    parser.add_argument("paths", nargs="*", type=pathlib.Path, metavar="PATH", help="Python, C++ or CUDA sources, or folders of them")
    parser.add_argument("--format", choices=WRITERS, default="text", help="format of the report (default: text)")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="file for the report or the reference (default: standard output)")
    parser.add_argument("--only", type=verdicts, metavar="VERDICTS", default=findings.VERDICTS,
                        help="show only findings with these verdicts, such as none,behaves-differently; totals and exit code cover all")
    parser.add_argument("--baseline", type=pathlib.Path, metavar="FILE", help="omit findings that this file lists")
    parser.add_argument("--write-baseline", type=pathlib.Path, metavar="FILE", help="write all findings to this file, for --baseline")
    parser.add_argument("--explain", metavar="RULE", help="print a rule with its code, such as APX012")
    parser.add_argument("--reference", action="store_true", help="print all rules with their code, as a Markdown page")
    return parser.parse_args(argv)


def write_reference(out, known_rules):
    text = reference.text(known_rules)
    sys.stdout.write(text) if out is None else out.write_text(text, encoding="utf-8")


def report(options, known_rules):
    result = scan(options.paths, known_rules)
    for line in result.unread:
        print(f"port_check: {line}", file=sys.stderr)
    if options.write_baseline:
        findings.write_baseline(options.write_baseline, result.findings)
        print(f"port_check: {len(result.findings)} findings are now listed in {options.write_baseline}", file=sys.stderr)
        return NOT_CHECKED if result.unread else PORTED
    if options.baseline:
        findings.hide_known(result, findings.read_baseline(options.baseline))
    result.only = options.only
    if options.out:
        with options.out.open("w", encoding="utf-8") as out:
            WRITERS[options.format](result, out)
        print(f"report: {options.out}", file=sys.stderr)
    else:
        WRITERS[options.format](result, sys.stdout)
    if result.unread:
        return NOT_CHECKED
    return NOT_PORTED if any(finding.blocks for finding in result.findings) else PORTED


def main(argv):
    options, known_rules = arguments(argv), rules.load()
    if options.reference:
        write_reference(options.out, known_rules)
        return PORTED
    if options.explain:
        rule = known_rules.by_id.get(options.explain.upper())
        if rule is None:
            raise Usage(f"no such rule: {options.explain} (APX001 to {known_rules.all[-1].id})")
        print(reference.explain(rule))
        return PORTED
    if not options.paths:
        raise Usage("name a source or a folder (see --help)")
    return report(options, known_rules)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.setrecursionlimit(50000)  # a sum of a thousand strings is a tree a thousand levels deep
    try:
        sys.exit(main(sys.argv[1:]))
    except (Usage, ValueError, OSError) as error:
        print(f"port_check: {error}", file=sys.stderr)
        sys.exit(NOT_CHECKED)
