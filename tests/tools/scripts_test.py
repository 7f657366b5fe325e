"""The scripts of tools/ as shells call them: by a link, with CDPATH, without HOME, on a cache that cannot be written, several at once."""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
CACHE = os.environ.get("APEX_CPP_CACHE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "apex_cpp"
DATA = pathlib.Path(os.environ.get("APEX_CPP_DATA") or pathlib.Path(CACHE) / "data")
DIGITS = DATA / "digits/digits.csv.gz"
# Root may write everywhere: another user meets what is closed.
OTHER_USER = {"user": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


def digest(name):
    return hashlib.sha256((ROOT / "tools" / name).read_bytes()).hexdigest()[:12]


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="apex_cpp-scripts-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "cache"
        self.env = self.cache / f"env-{digest('requirements.txt')}"
        self.env.mkdir(parents=True)
        (self.env / "complete").write_text("/the/prefix\n")

    def run_tool(self, *command, root=ROOT, without=(), user=None, extra_groups=None, **variables):
        """Exit code, standard output and standard error of the command in the folder `root`."""
        environment = {**os.environ, "APEX_CPP_CACHE": str(self.cache), **variables}
        for name in (*without, "torch_environment"):  # set while the tests run with another torch
            environment.pop(name, None)
        ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, user=user,
                               extra_groups=extra_groups)
        return ended.returncode, ended.stdout, ended.stderr

    def test_prints_one_prefix_with_cdpath(self):
        self.assertEqual(self.run_tool("tools/setup", "--prefix", CDPATH=f".:{ROOT}"), (0, "/the/prefix\n", ""))

    def test_finds_the_repository_through_a_link(self):
        mistakes = {
            ("setup", "--no"): "unknown argument '--no'",
            ("train", "no.yaml"): "no such config: ",
            ("test", "--preset", "no"): "--preset takes release, dev, asan or tsan, not 'no'",
            ("test", "--arch", "riscv64"): "--arch takes aarch64, and no further arguments",
            ("test", "--torch", "2.15"): "--torch takes a version of three numbers, not '2.15'",
            ("package", "--no"): "unknown argument '--no'",
            ("reference", "--no"): "unknown argument '--no'",
            ("lint", "--no"): "unknown argument '--no'",
        }
        for (tool, *arguments), message in mistakes.items():
            link = self.folder / tool
            link.unlink(missing_ok=True)
            link.symlink_to(ROOT / "tools" / tool)
            code, _, error = self.run_tool(link, *arguments)
            self.assertEqual(code, 1, error)
            self.assertTrue(error.startswith(f"{tool}: {message}"), error)

    def test_says_what_to_set_where_there_is_no_home(self):
        ended = self.run_tool("tools/setup", "--prefix", without=("HOME", "XDG_CACHE_HOME", "APEX_CPP_CACHE"))
        self.assertEqual(ended, (1, "", "setup: HOME is not set: set it, or APEX_CPP_CACHE to the cache folder\n"))
        self.assertEqual(self.run_tool("tools/setup", "--prefix", without=("HOME",))[0], 0)

    def test_a_relative_cache_is_in_the_callers_folder(self):
        ended = self.run_tool(ROOT / "tools/setup", "--prefix", root=self.folder, APEX_CPP_CACHE="cache")
        self.assertEqual(ended, (0, "/the/prefix\n", ""))
        script = f'. {ROOT}/tools/lib.sh; echo "$APEX_CPP_CACHE"'
        ended = self.run_tool("bash", "-c", script, root=self.folder, without=("APEX_CPP_CACHE",), XDG_CACHE_HOME="x")
        self.assertEqual(ended, (0, f"{self.folder}/x/apex_cpp\n", ""))

    def test_takes_no_empty_word_for_a_config(self):
        code, _, error = self.run_tool("tools/train", "")
        self.assertEqual((code, error), (1, "train: the config is '': give one, or leave it out for digits_o2.yaml\n"))

    def test_takes_a_config_behind_options(self):
        clone, config = self.clone_that_builds_nothing(), self.folder / "c.yaml"
        config.touch()
        self.pretend(clone / "build/release/examples/train/train", 'echo "$*"')
        commands = {"--epochs 2 c.yaml": "--epochs 2", "c.yaml --epochs 2": "--epochs 2", "--seed=1 c.yaml more": "--seed=1 more"}
        for command, others in commands.items():
            code, output, error = self.run_tool(clone / "tools/train", *command.split(), root=self.folder,
                                                PATH=f"{clone}/bin:{os.environ['PATH']}")
            self.assertEqual((code, output), (0, f"{config} {others}\n"), error)

    def test_takes_one_grid(self):
        code, _, error = self.run_tool("tools/compare", "a.yaml", "b.yaml")
        refusal = "compare: takes one grid, but 'b.yaml' is a second: list the configs of both in one grid\n"
        self.assertEqual((code, error), (1, refusal))

    def test_tells_its_usage_before_it_sets_up_or_builds(self):
        clone = self.clone()
        for tool in ("setup", "train", "test", "compare", "bench", "package", "reference", "plot", "port_check", "lint"):
            for ask in (("--help",), ("-h",), ("more", "--help")):
                code, usage, error = self.run_tool(clone / "tools" / tool, *ask, root=self.folder)
                self.assertEqual((code, error), (0, ""), tool)
                self.assertIn(f"usage: tools/{tool}", usage)
                self.assertNotIn("set -euo", usage)
        self.assertFalse((clone / "build").exists())
        self.assertEqual([entry.name for entry in self.cache.iterdir()], [self.env.name])

    def test_lists_all_options_before_it_sets_up_or_builds(self):
        clone = self.clone()
        options = {
            ("train",): ("--nproc N", "--run-dir DIR", "--resume PATH"),
            ("bench",): ("--rounds N", "convolution  time of BF16 convolutions"),
            ("compare", "doctor"): ("--level LEVEL", "--steps N"),
            ("compare",): ("--out DIR",),
            ("test",): ("--preset", "--torch X.Y.Z", "--arch aarch64", "--all"),
            ("plot",): ("--title TEXT", "--only REGEX"),
            ("port_check",): ("--only VERDICTS", "--explain RULE"),
        }
        for (tool, *command), listed in options.items():
            code, usage, error = self.run_tool(clone / "tools" / tool, *command, "--help", root=self.folder)
            self.assertEqual((code, error), (0, ""), tool)
            for option in listed:
                self.assertIn(option, usage)
        self.assertFalse((clone / "build").exists())
        self.assertEqual([entry.name for entry in self.cache.iterdir()], [self.env.name])

    def test_names_a_package_that_is_there_for_another_architecture_alone(self):
        prefix = self.folder / "usr"
        headers = ["yaml-cpp/yaml.h", "nlohmann/json.hpp", "CLI/CLI.hpp", "gtest/gtest.h", "zlib.h", "jpeglib.h", "png.h"]
        libraries = ["cmake/yaml-cpp/yaml-cpp-config.cmake", "cmake/GTest/GTestConfig.cmake", "libz.so", "libjpeg.so", "libpng.so"]

        def give(folder, names):
            for name in names:
                path = prefix / folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()

        def missing(kind):
            script = f". {ROOT}/tools/lib.sh; system_prefixes=({prefix}); missing {kind} | grep -E '^(lib|nloh|zlib)' || true"
            return self.run_tool("bash", "-c", script)[1].split()

        self.assertEqual(missing("fetched"), ["libyaml-cpp-dev", "nlohmann-json3-dev", "libcli11-dev", "libgtest-dev", "zlib1g-dev"])
        give("include", headers)
        give("lib/other-linux-gnu", libraries)
        self.assertEqual(missing("fetched"), ["libyaml-cpp-dev", "libgtest-dev", "zlib1g-dev"])
        self.assertEqual(missing("tests"), ["libjpeg-dev", "libpng-dev"])
        give(f"lib/{os.uname().machine}-linux-gnu", libraries)
        self.assertEqual((missing("fetched"), missing("tests")), ([], []))

    def test_names_fedoras_packages_where_there_is_dnf(self):
        programs = self.folder / "bin"
        self.pretend(programs / "dnf")
        for program in pathlib.Path("/usr/bin").iterdir():
            if not program.name.startswith(("apt-get", "g++", "dnf")):
                (programs / program.name).symlink_to(program)
        code, _, error = self.run_tool("tools/setup", PATH=str(programs))
        self.assertEqual(code, 1)
        self.assertIn("Have these installed, then run this again:\n  dnf install gcc-c++\n", error)

    def test_makes_an_environment_where_python_has_no_ensurepip(self):
        python = self.folder / "python"
        python.write_text(f"""#!/bin/sh\n[ "$1" != -c ] || exit 1\nexec "{sys.executable}" "$@"\n""")
        python.chmod(0o755)
        script = f". {ROOT}/tools/lib.sh; work={self.folder}; new_environment {python} {self.folder}/new; repair_python {self.folder}/new"
        code, _, error = self.run_tool("bash", "-c", script)
        self.assertEqual((code, error), (0, ""))
        pip = self.run_tool(self.folder / "new/bin/python", "-m", "pip", "--version")[1]
        self.assertIn("pip 24.3.1 ", pip)

    def test_asks_the_torch_of_the_environment_and_no_other(self):
        def give(site, prefix):
            (site / "torch").mkdir(parents=True)
            (site / "torch/__init__.py").write_text(f"import types\nutils = types.SimpleNamespace(cmake_prefix_path={prefix!r})\n")

        new, lib = self.folder / "new", f". {ROOT}/tools/lib.sh; work={self.folder};"
        self.assertEqual(self.run_tool("bash", "-c", f"{lib} new_environment {sys.executable} {new}")[0], 0)
        give(next((new / "lib").glob("python3.*")) / "site-packages", "/its/own")
        give(self.folder / "other", "/another")
        (self.folder / "other/pip.py").write_text("print('another pip')\n")
        asked = self.run_tool("bash", "-c", f"{lib} print_torch_prefix {new}", PYTHONPATH=str(self.folder / "other"))
        self.assertEqual(asked, (0, "/its/own\n", ""))
        code, _, shown = self.run_tool("bash", "-c", f"{lib} run_pip {new} list", PYTHONPATH=str(self.folder / "other"))
        self.assertEqual((code, "another pip" in shown), (0, False), shown)

    def test_finds_torch_where_the_cache_was_moved_or_copied(self):
        torch = "lib/python3.11/site-packages/torch/share/cmake"
        (self.env / "complete").write_text(f"{self.env}/{torch}\n")
        copy = self.folder / "a copy"
        shutil.copytree(self.cache, copy)
        for cache in (self.cache, copy):
            output = self.run_tool("tools/setup", "--prefix", APEX_CPP_CACHE=str(cache))
            self.assertEqual(output, (0, f"{cache / self.env.name / torch}\n", ""))

    def test_repairs_the_scripts_of_an_environment_that_was_moved(self):
        env = self.cache / "new"
        script = ". {0}/tools/lib.sh; install() {{ echo {1}/its/prefix; }}; make_python {1} nothing install"
        self.assertEqual(self.run_tool("bash", "-c", script.format(ROOT, env))[0], 0)
        moved = self.folder / "moved"
        self.cache.rename(moved)
        self.assertNotEqual(self.run_tool("sh", "-c", f"{moved}/new/bin/pip --version")[0], 0)
        variables = {"APEX_CPP_CACHE": str(moved)}
        code, _, error = self.run_tool("bash", "-c", script.format(ROOT, moved / "new"), **variables)
        self.assertEqual((code, error), (0, f"bash: repairing the scripts of {moved}/new, which were made for {env}\n"))
        code, output, error = self.run_tool(f"{moved}/new/bin/pip", "--version")
        self.assertIn(f" from {moved}/new/lib", output, error)
        self.assertIn(f"{moved}/new", (moved / "new/bin/activate").read_text())
        # Nothing is repaired where it is, or where another name of the folder still leads to it.
        self.cache.symlink_to(moved)
        for cache in (moved, self.cache):
            self.assertEqual(self.run_tool("bash", "-c", script.format(ROOT, cache / "new"), **variables), (0, "", ""))

    def test_trains_with_several_processes_from_any_folder(self):
        clone, config = self.clone_that_builds_nothing(), self.folder / "c.yaml"
        config.touch()
        self.pretend(clone / "build/release/examples/distributed/distributed", 'echo "$PWD: $MASTER_PORT $RANK/$WORLD_SIZE $*"')
        for arguments in (("--nproc", "2", "c.yaml"), ("c.yaml", "--nproc=2"), ("c.yaml", "--nproc", "2")):
            code, output, error = self.run_tool(clone / "tools/train", *arguments, "--epochs", "1", root=self.folder,
                                              PATH=f"{clone}/bin:{os.environ['PATH']}")
            self.assertEqual(code, 0, error)
            ranks = [f"[rank {rank}] {self.folder}: 29500 {rank}/2 {config} --epochs 1" for rank in (0, 1)]
            self.assertCountEqual(output.splitlines(), ranks)

    def test_keeps_ccache_out_of_a_home_that_is_closed(self):
        self.pretend(self.folder / "bin/ccache", 'echo "$HOME/.cache/ccache"')

        def chosen(**variables):
            script = f'. {ROOT}/tools/lib.sh; choose_ccache_folder; echo "${{CCACHE_DIR:-}} ${{CCACHE_DISABLE:-}}"'
            return self.run_tool("bash", "-c", script, without=("CCACHE_DIR", "CCACHE_DISABLE"),
                                 PATH=f"{self.folder}/bin:{os.environ['PATH']}", **variables)[1].strip()

        self.assertEqual(chosen(HOME=str(self.folder)), "")
        self.assertEqual(chosen(HOME="/proc/none"), f"{self.cache}/ccache")
        self.assertEqual(chosen(HOME="/proc/none", APEX_CPP_CACHE="/proc/none/cache"), "1")

    def test_builds_one_after_the_other(self):
        clone = self.clone_that_builds_nothing()
        self.pretend(clone / "bin/cmake", f"echo begin >>{self.folder}/log; sleep 0.3; echo end >>{self.folder}/log")
        environment = {**os.environ, "APEX_CPP_CACHE": str(self.cache), "PATH": f"{clone}/bin:{os.environ['PATH']}"}
        environment.pop("torch_environment", None)
        runs = [subprocess.Popen(["bash", "-c", f". {clone}/tools/lib.sh; build release"], env=environment, stderr=subprocess.DEVNULL)
                for _ in range(2)]
        self.assertEqual([run.wait() for run in runs], [0, 0])
        self.assertEqual((self.folder / "log").read_text().split(), ["begin", "end"] * 4)

    def test_stages_build_what_they_run(self):
        clone = self.clone_that_builds_nothing()
        self.pretend(clone / "bin/cmake", f'echo "$*" >>{self.folder}/built')
        self.pretend(clone / "bin/valgrind")
        for stage, modules in {"valgrind": ["kernels"], "large": ["optimizers"], "repeated": ["reuse", "distributed"]}.items():
            programs = [f"{module}_tests" for module in modules]
            for module, program in zip(modules, programs):
                self.pretend(clone / "build/release/tests" / module / program)
            code, _, error = self.run_tool("tools/test", "--stage", stage, root=clone, PATH=f"{clone}/bin:{os.environ['PATH']}")
            self.assertEqual(code, 0, error)
            last = (self.folder / "built").read_text().splitlines()[-1]
            self.assertRegex(last, f"^--build build/release .*--target {' '.join(programs)}$")

    def test_takes_a_number_of_processes(self):
        for arguments, value in {("c.yaml", "--nproc"): "", ("--nproc=x",): "x", ("--nproc", "0"): "0"}.items():
            code, _, error = self.run_tool("tools/train", *arguments)
            self.assertEqual((code, error), (1, f"train: --nproc takes a number of processes, not '{value}'\n"))

    @unittest.skipUnless(DIGITS.exists(), f"{DIGITS} is missing: run tools/setup first")
    def test_writes_nothing_to_a_complete_cache_that_is_closed(self):
        self.complete_the_cache()
        code, _, error = self.run_as_reader("tools/setup")
        self.assertEqual(code, 0, error)
        self.assertIn(f"setup: ready: LibTorch in {self.env}", error)
        ended = self.run_as_reader("tools/port_check", "x.py")
        self.assertEqual(ended, (0, f"{self.folder}/clone/tools/porting/program.py x.py\n", ""))

    def test_says_where_a_closed_cache_is_not_complete(self):
        code, _, error = self.run_as_reader("tools/setup")
        self.assertEqual((code, error), (1, f"setup: the cache folder {self.cache} is not complete and cannot be written: "
                                            "set APEX_CPP_CACHE to one that can be\n"))

    def test_says_where_an_environment_is_missing_in_a_closed_cache(self):
        code, _, error = self.run_as_reader("tools/port_check", "x.py")
        self.assertEqual(code, 1)
        self.assertRegex(error, f"^port_check: {self.cache}/port_check-\\w+ is missing, and the cache folder cannot be written: "
                                "set APEX_CPP_CACHE to one that can be\n$")

    def test_makes_an_environment_once_and_anew_where_one_is_not_complete(self):
        env = self.cache / "new"
        (env / "half").mkdir(parents=True)
        script = f"""set -eu
            . {ROOT}/tools/lib.sh
            install() {{ echo "$1" >>{self.folder}/installed; "$1/bin/python" -c 'print("/its/prefix")'; }}
            make_python {env} 'nothing else' install {env}"""
        makers = [subprocess.Popen(["bash", "-c", script, "maker"], env={**os.environ, "APEX_CPP_CACHE": str(self.cache)}) for _ in range(3)]
        self.assertEqual([maker.wait() for maker in makers], [0, 0, 0])
        self.assertEqual((self.folder / "installed").read_text(), f"{env}\n")
        self.assertEqual(((env / "complete").read_text(), (env / "half").exists()), ("/its/prefix\n", False))
        self.assertEqual(list(self.cache.glob("maker.*")), [])

    def test_makes_nothing_but_linters_for_lint(self):
        self.complete("lint")
        self.assertEqual(self.run_tool("tools/setup", "--lint"), (0, "", ""))
        self.assertEqual(self.run_tool("tools/lint", str(ROOT)), (0, f"tools/lint.py {ROOT}\n", ""))
        made = {path.name.split("-")[0] for path in self.cache.iterdir() if path != self.env}
        self.assertEqual(made, {"lint", "lock"})

    def test_says_that_linters_cannot_be_fetched(self):
        code, _, error = self.run_tool("tools/lint", PIP_INDEX_URL="http://127.0.0.1:9", PIP_FIND_LINKS="", PIP_RETRIES="0")
        self.assertEqual(code, 1)
        self.assertIn(f"setup: pip could not install {ROOT}/tools/requirements-lint.txt (its message is above); "
                      "run this again when the registry can be reached\n", error)

    def test_compares_nothing_where_the_report_cannot_be_written(self):
        clone = self.clone_that_builds_nothing()
        self.pretend(clone / "build/release/tools/comparison/compare", f"touch {self.folder}/compared")
        code, _, error = self.run_tool(clone / "tools/compare", root=self.folder, PATH=f"{clone}/bin:{os.environ['PATH']}",
                                       PIP_INDEX_URL="http://127.0.0.1:9", PIP_FIND_LINKS="", PIP_RETRIES="0")
        self.assertEqual(code, 1)
        self.assertIn(f"compare: pip could not install {clone}/tools/requirements-plot.txt", error)
        self.assertFalse((self.folder / "compared").exists())

    def test_packages_take_the_place_of_earlier_ones(self):
        clone, version = self.clone(), "0.1.0+torch2.11.cpu"
        made = [f"apex_cpp-{version}-py3-none-any.whl", f"apex-cpp-{version}-Linux-x86_64.tar.gz", f"apex-cpp_{version}_amd64.deb"]
        self.pretend(clone / "tools/setup")
        self.pretend(clone / "tools/packaging/make_wheel", f'mkdir -p "$3" && touch "$3/{made[0]}"')
        for program in ("cmake", "dpkg-shlibdeps"):
            self.pretend(clone / "bin" / program)
        self.pretend(clone / "bin/cpack", f'[ "$4" = TGZ ] && touch "$6/{made[1]}" || touch "$6/{made[2]}"')
        self.complete("package")
        others = ["dist/notes", "dist/apex_cpp-notes.txt", "dist/other-1.0+torch2.11.whl"]
        earlier = ["dist/apex_cpp-0.0.9+torch2.10.cu126-py3-none-any.whl", "dist/apex-cpp_0.0.9+torch2.10.cpu_amd64.deb"]
        for name in others + earlier:
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).touch()
        of_another_torch = self.cache / "env-torch-2.12.0"
        of_another_torch.mkdir()
        (of_another_torch / "complete").touch()
        for folder, arguments in {"dist": (), "dist/torch-2.12.0": ("--torch", "2.12.0")}.items():
            code, _, error = self.run_tool("tools/package", *arguments, root=clone, PATH=f"{clone}/bin:{os.environ['PATH']}")
            self.assertEqual(code, 0, error)
            self.assertTrue(error.endswith(f"package: made: {' '.join(f'{folder}/{name}' for name in made)}\n"), error)
            others += [f"{folder}/{name}" for name in made]
            left = [str(path.relative_to(clone)) for path in clone.glob("dist/**/*") if path.is_file()]
            self.assertCountEqual(left, others)

    def test_packages_have_the_same_cuda_code_whatever_was_built_before(self):
        clone = self.clone_that_builds_nothing()
        name = "0.1.0+torch2.11.cpu"
        self.pretend(clone / "tools/packaging/make_wheel", f'mkdir -p "$3" && touch "$3/apex_cpp-{name}-py3-none-any.whl"')
        self.pretend(clone / "bin/cpack", f'touch "$6/apex-cpp-{name}-Linux-x86_64.tar.gz"')
        self.pretend(clone / "bin/cmake", f'echo "$*" >>{self.folder}/configured')
        self.complete("package")
        cache = clone / "build/release/CMakeCache.txt"
        cache.parent.mkdir(parents=True)
        cache.write_text("APEX_CPP_CUDA:STRING=AUTO\nAPEX_CPP_CUDA_WITHOUT_GPU:STRING=8.0+PTX\nTORCH_CUDA_ARCH_LIST:UNINITIALIZED=9.0\n")
        for gpu_there, option in {"exit 0": "AUTO", "exit 9": "OFF"}.items():
            self.pretend(clone / "bin/nvidia-smi", gpu_there)
            code, _, error = self.run_tool("tools/package", root=clone, without=("APEX_CPP_CUDA",), PATH=f"{clone}/bin:{os.environ['PATH']}")
            self.assertEqual(code, 0, error)
            configured = (self.folder / "configured").read_text().splitlines()[-2].split()
            self.assertLessEqual({f"-DAPEX_CPP_CUDA={option}", "-UTORCH_CUDA_ARCH_LIST", "-DAPEX_CPP_CUDA_WITHOUT_GPU=ALL"}, set(configured))

    def test_packs_the_yaml_cpp_that_the_programs_need(self):
        clone = self.clone_that_builds_nothing()
        shutil.copytree(ROOT / "examples/train/configs", clone / "examples/train/configs")
        table, digits, library = clone / "tests/cuda/on_gpu.txt", self.cache / "data/digits/digits.csv.gz", self.folder / "libyaml-cpp.so.0.7"
        for path in (table, digits, library):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        table.write_text("# program\nkernels_tests Cuda.*\n")
        for program in ("kernels_tests", "bench", "train"):
            self.pretend(clone / "build/release" / program / program)
        self.pretend(clone / "bin/cmake", f'echo "$TORCH_CUDA_ARCH_LIST $*" >>{self.folder}/configured')
        self.pretend(clone / "bin/strip", 'cp "$3" "$2"')
        self.pretend(clone / "bin/ldconfig", "exit 127")
        for needed, packed in {f"libyaml-cpp.so.0.7 => {library} (0x0)": [library.name], "libc.so.6 => /lib/libc.so.6 (0x0)": []}.items():
            self.pretend(clone / "bin/ldd", f"echo '{needed}'")
            code, _, error = self.run_tool("tools/gpu", "--pack", "8.6", root=clone, PATH=f"{clone}/bin:{os.environ['PATH']}")
            self.assertEqual(code, 0, error)
            with tarfile.open(clone / "dist/apex_cpp_gpu.tar.xz") as archive:
                names = archive.getnames()
            self.assertEqual([name for name in names if name.startswith("apex_cpp_gpu/lib/")], [f"apex_cpp_gpu/lib/{name}" for name in packed])
            self.assertIn("apex_cpp_gpu/bin/train", names)
        # The architecture stays in no cache, where it would count for later builds.
        configured = (self.folder / "configured").read_text().splitlines()[0]
        self.assertRegex(configured, "^8.6 --preset release .*-UTORCH_CUDA_ARCH_LIST")
        self.assertNotIn("-DTORCH_CUDA_ARCH_LIST", configured)

    def test_the_conda_recipe_names_this_version_torch_and_options(self):
        recipe, cmake, options = ((ROOT / name).read_text() for name in (
            "tools/packaging/conda/recipe.yaml", "CMakeLists.txt", "tools/cmake/ApexOptions.cmake"))
        self.assertIn(f"version: {re.search(r'project.apex_cpp VERSION ([0-9.]+)', cmake)[1]}\n", recipe)
        self.assertIn(f'torch: "{re.search("APEX_CPP_TORCH_VERSION ([0-9.]+)", cmake)[1]}"\n', recipe)
        set_by_recipe = set(re.findall(r"-D(APEX_CPP_\w+)=", recipe))
        self.assertIn("APEX_CPP_FETCH", set_by_recipe)
        self.assertLessEqual(set_by_recipe - {"APEX_CPP_FETCH"}, set(re.findall(r"(?:option|set)\((\w+)", options)))

    def pretend(self, path, script=""):
        """A program that does this and nothing else."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a link would be written through, into the program that it leads to
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def complete(self, name):
        """Its environment is complete, with an interpreter that says what it is to run."""
        env = self.cache / f"{name}-{digest(f'requirements-{name}.txt')}"
        self.pretend(env / "bin/python", 'echo "$@"')
        (env / "complete").touch()

    def complete_the_cache(self):
        """Gives it all that tools/setup looks for, and what tools/port_check runs."""
        for headers in ("cccl/thrust", "crt"):
            (self.env / "lib/python3.11/site-packages/nvidia/cu13/include" / headers).mkdir(parents=True)
        (self.cache / f"safetensors-{digest('requirements-safetensors.txt')}").mkdir()
        (self.cache / "data/digits").mkdir(parents=True)
        shutil.copy(DIGITS, self.cache / "data/digits")
        self.complete("port_check")

    def clone(self):
        """A copy of the scripts, and of the help of a program."""
        clone = self.folder / "clone"
        shutil.copytree(ROOT / "tools", clone / "tools", symlinks=True)
        (clone / "examples/train").mkdir(parents=True)
        shutil.copy(ROOT / "examples/train/help.txt", clone / "examples/train")
        return clone

    def clone_that_builds_nothing(self):
        """Its programs are those that a test pretends, in an environment whose Python knows one free port."""
        clone = self.clone()
        self.pretend(clone / "tools/setup")
        self.pretend(clone / "bin/cmake")
        self.pretend(self.env / "bin/python", "echo 29500")
        return clone

    def run_as_reader(self, *command):
        """As `run_tool`, by a user who may write to neither the cache nor the repository: a copy, since its own place may be closed
        to that user."""
        clone = self.folder / "clone"
        if not clone.exists():
            self.clone()
            subprocess.run(["chmod", "-R", "a+rX", self.folder], check=True)
            self.cache.chmod(0o555)
            self.addCleanup(self.cache.chmod, 0o755)
        return self.run_tool(*command, root=clone, **OTHER_USER)


if __name__ == "__main__":
    unittest.main(verbosity=2)
