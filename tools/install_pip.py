"""Installs pip into the environment of this interpreter, where Python comes without ensurepip: install_pip.py REQUIREMENTS FOLDER reads version
and hash from the requirements file, and downloads the wheel into the folder."""
import hashlib
import json
import pathlib
import re
import runpy
import sys
import urllib.request

INDEX = "https://pypi.org/simple/pip/"

requirements, folder = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"), pathlib.Path(sys.argv[2])
pinned = re.search(r"sha256:(\w+)", requirements)[1]
request = urllib.request.Request(INDEX, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
with urllib.request.urlopen(request) as answer:
    files = json.load(answer)["files"]
found = next((file for file in files if file["hashes"].get("sha256") == pinned), None)
if found is None:
    sys.exit(f"install_pip: {INDEX} has no file with the hash of {sys.argv[1]}")
with urllib.request.urlopen(found["url"]) as answer:
    wheel = answer.read()
if hashlib.sha256(wheel).hexdigest() != pinned:
    sys.exit(f"install_pip: {found['url']} is not the file that {sys.argv[1]} pins")
path = folder / found["filename"]
path.write_bytes(wheel)
sys.path.insert(0, str(path))
sys.argv = ["pip", "--disable-pip-version-check", "--quiet", "install", "--no-index", "--no-deps", str(path)]
runpy.run_module("pip", run_name="__main__")
