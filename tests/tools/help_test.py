"""The help that tools/ prints before anything is built is what the programs print: help_test.py PROGRAM TEXT [PROGRAM TEXT]..."""
import pathlib
import subprocess
import sys

failures = 0
for program, text in zip(sys.argv[1::2], sys.argv[2::2]):
    printed = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    same = printed.split() == pathlib.Path(text).read_text().split()  # versions of CLI11 differ in blanks
    print(f"{text}: {'is' if same else 'differs from'} what {program} prints", *([] if same else [printed]), sep="\n")
    failures += not same
sys.exit(failures or len(sys.argv) < 3)
