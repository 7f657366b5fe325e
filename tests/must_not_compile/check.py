"""Compiles a file whose cases must not compile, and looks for the sentence in the comment before each among the errors.

check.py CASES COMPILER [ARGUMENTS...]
"""
import re
import subprocess
import sys

cases, command = sys.argv[1], sys.argv[2:]
with open(cases) as file:
    comments = re.findall(r"((?:^// .*\n)+)(?=void )", file.read(), re.MULTILINE)
sentences = [" ".join(line[3:] for line in comment.splitlines()) for comment in comments]
result = subprocess.run([*command, "-fsyntax-only", "-fmax-errors=0", cases], stderr=subprocess.PIPE, text=True)
said = re.findall(r"static assertion failed: (.*)", result.stderr)
missing = [sentence for sentence in set(sentences) if said.count(sentence) < sentences.count(sentence)]
surplus = [sentence for sentence in set(said) if said.count(sentence) > sentences.count(sentence)]
for sentence in missing:
    print("not said, or not for each case:", sentence)
for sentence in surplus:
    print("said too often:", sentence)
if missing or surplus or not sentences or result.returncode == 0:
    print(result.stderr)
    sys.exit(f"{len(missing)} of {len(sentences)} sentences are missing, {len(surplus)} are too many")
print(f"each of {len(sentences)} cases ends in its sentence")
