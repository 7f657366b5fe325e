"""Compares the rules with the names of Apex, the reference that is made from them with the rules, and apex_cpp/porting.md with the reference.
tests/programs compiles and runs the blocks of both pages."""
import collections
import pathlib
import re
import tempfile
import unittest

from support import ROOT, ToolTest, run

RULES = ROOT / "tools/porting/rules"
NAMES = pathlib.Path(__file__).with_name("apex_names.txt")
CPP_NAMES = pathlib.Path(__file__).with_name("apex_cpp_names.txt")
VERDICTS = {"exact", "renamed", "behaves differently", "none"}
EFFORTS = {"none", "low", "medium", "high"}
# Packages whose classes are listed with every method; elsewhere the rule of a class is enough.
OF_AMP = {"amp", "fp16_utils", "multi_tensor_apply", "normalization", "optimizers", "parallel"}
# By what else Apex's file is known that registers a name that others have as well; by nothing.
BESIDE = {
    "flatten": "#include <torch/csrc/utils/tensor_flatten.h>",
    "focal_loss_forward": "Tensor focal_loss_forward_cuda();",
    "group_norm_fwd": "void group_norm_nhwc_fwd_one_pass_setup();",
    "ln_fwd": "FwdRegistry FWD_FUNCS;",
    "mlp_forward": "size_t get_mlp_reserved_space();",
}
NOT_TELLING_ALONE = {"get_nccl_version"}
# Rules without a block, which C++ programs have no use for.
WITHOUT_SNIPPET = {"APX629"}


def use_of(name, names):
    """A line of Python that uses a recorded name: `module.function(argument)`, `module.Class.method`, `module.name`."""
    if "(" in name:
        return name[:-1] + "=0)"
    head, _, last = name.rpartition(".")
    return f"{head}().{last}()" if head in names and head.rsplit(".", 1)[-1][:1].isupper() else name


def is_found(name, found):
    """Whether the last part of a recorded name is among what was found in its line. The rule of a function covers its arguments."""
    parts = name.split("(")[0].split(".")
    wanted = parts[-1:] if parts[1] in OF_AMP else parts[-2:]
    return any(each.split("(")[0].rsplit(".", 1)[-1] in wanted for each in found)


class Coverage(ToolTest):
    maxDiff = None

    def test_every_name_of_apex_has_a_rule(self):
        names = [line for line in NAMES.read_text().splitlines() if not line.startswith("#")]
        roots = sorted({name.split(".")[0] for name in names})
        self.write("all.py", f"import {', '.join(roots)}\n" + "\n".join(use_of(name, set(names)) for name in names) + "\n")
        report = self.check()
        found_at = collections.defaultdict(list)
        for found in report["findings"]:
            found_at[found["line"]].append(found["name"])
        unclassified = [found["name"] for found in report["findings"] if found["rule"] == "APX000"]
        # Names of modules, which are nothing that is called.
        packages = {name.rsplit(".", depth)[0] for name in names for depth in range(1, name.count(".") + 1) if "(" not in name}
        silent = [name for line, name in enumerate(names, 2) if name not in packages and not is_found(name, found_at[line])]
        self.assertGreater(len(names), 2000)
        self.assertEqual(unclassified, [])
        self.assertEqual(silent, [])

    def test_functions_of_amp_C_are_found_by_both_names(self):
        names = [line for line in NAMES.read_text().splitlines() if line.startswith("amp_C.")]
        self.assertEqual(len(names), 17)
        functions = [name.split(".")[1] for name in names]
        in_cpp = [name if name.endswith("_cuda") else f"{name}_cuda" for name in functions]
        self.write("calls.cu", "".join(f"auto f{i} = &{name};\n" for i, name in enumerate(in_cpp)))
        self.write("calls.py", "import amp_C\n" + "".join(f"amp_C.{name}\n" for name in functions))
        found = {}
        for each in self.check(code=0)["findings"]:
            found.setdefault(each["file"], []).append(each["rule"])
        self.assertEqual(found["calls.cu"], found["calls.py"])
        self.assertEqual(len(set(found["calls.cu"])), 17)

    def test_every_function_of_apex_extension_modules_has_a_rule(self):
        lines = [line.split() for line in CPP_NAMES.read_text().splitlines() if not line.startswith("#")]
        of_file = collections.defaultdict(list)
        for file, function in lines:
            of_file[file].append(function)
        for file, functions in of_file.items():
            defined = "".join(f'  m.def("f", &{function}, "what it does");\n' for function in functions)
            given = "".join(f"{BESIDE[function]}\n" for function in functions if function in BESIDE)
            self.write(file, f"{given}PYBIND11_MODULE(name, m) {{\n{defined}}}\n")
        report = self.check(code=1)
        found = {(each["file"], each["name"]) for each in report["findings"]}
        self.assertGreater(len(lines), 150)
        self.assertEqual([name for file, name in lines if (file, name) not in found and name not in NOT_TELLING_ALONE], [])

    def test_the_headers_of_amp_C_have_as_many_arguments_as_the_rules_say(self):
        for header in (ROOT / "apex_cpp/amp_C").glob("*.h"):
            self.write(header.name, header.read_text())
        found = {each["name"]: each["rule"] for each in self.check(code=0)["findings"] if each["name"].endswith("_cuda")}
        self.assertEqual(len(found), 18)  # with that of ROCm's Apex
        self.assertNotIn("APX526", found.values())
        self.write("other.h", "".join(f"void {name}(int one_alone);\n" for name in found))
        of_other = [each["rule"] for each in self.check(code=0)["findings"] if each["file"] == "other.h"]
        self.assertEqual(of_other, ["APX526"] * 18)


def sections(page, heading):
    """{title: text} of the headings of one depth."""
    parts = re.split(rf"^{heading} (.+)\n", page, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def rules_as_written():
    """{id: text} of every rule in the files of rules, as they are written."""
    found = {}
    for path in sorted(RULES.glob("*.yaml")):
        parts = re.split(r"^  - id: (APX\d+)\n", path.read_text(), flags=re.M)
        for id, text in zip(parts[1::2], parts[2::2]):
            assert id not in found, f"{id} stands twice"
            found[id] = text
    return found


class Reference(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = run("--reference").stdout
        cls.rules = sections(cls.page, "###")

    def test_it_has_every_rule_as_it_is_written(self):
        written = rules_as_written()
        self.assertGreater(len(written), 150)
        self.assertEqual(sorted(self.rules), sorted(written))
        for id, text in written.items():
            section = " ".join(self.rules[id].split())
            with self.subTest(id):
                for field in ("verdict", "effort", "counterpart"):
                    value = re.search(rf"^    {field}: (.*)$", text, flags=re.M)[1].split("  #")[0].strip("'\"")
                    self.assertIn(value, section)
                names = re.search(r"^    (?:names|flags|cpp|includes): \[(.*?)\]$", text, flags=re.M | re.S)[1]
                for quoted, plain in re.findall(r'"([^"]+)"|([^\s,"][^,"]*)', names):
                    self.assertIn(f"`{quoted or plain.strip()}`", section)
                for field in ("differs", "snippet"):
                    block = re.search(rf"^    {field}: (?:[>|]\n)?((?:.*\n)(?:      .*\n|\n)*)", text + "\n", flags=re.M)
                    self.assertIn(" ".join(block[1].split()).strip("'\"") if block else "", section)

    def test_each_rule_has_one_id_a_verdict_an_effort_and_a_block(self):
        for id, page in self.rules.items():
            with self.subTest(id):
                self.assertRegex(id, r"^APX\d{3}$")
                self.assertNotEqual(id, "APX000")
                verdict, effort, counterpart = re.search(r"^\*\*(.+)\*\*, effort (\w+): (.+)$", page, flags=re.M).groups()
                self.assertIn(verdict, VERDICTS)
                self.assertIn(effort, EFFORTS)
                self.assertEqual(counterpart.startswith("nearest: "), verdict == "none")
                self.assertEqual("```cpp\n" in page, id not in WITHOUT_SNIPPET)

    def test_tables_lead_to_rules_and_no_link_leads_elsewhere(self):
        linked = re.findall(r"\]\(#(apx\d+)\)", self.page)
        self.assertEqual([name.upper() for name in linked], re.findall(r"^### (APX\d+)$", self.page, flags=re.M))
        prose = re.sub(r"^```.*?^```|^<!--.*?-->|`[^`]*`", "", self.page, flags=re.M | re.S)
        self.assertEqual(re.findall(r"\]\((?!#apx)[^)]*\)", prose), [])

    def test_out_writes_it_into_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "porting_reference.md")
            self.assertEqual(run("--reference", "--out", path).stdout, "")
            self.assertEqual(path.read_text(encoding="utf-8"), self.page)

    def test_explain_prints_a_rule(self):
        completed = run("--explain", "apx012")
        self.assertEqual(completed.returncode, 0)
        self.assertIn("apex.amp.initialize(min_loss_scale)", completed.stdout)
        self.assertIn("amp::InitializeOptions().min_loss_scale(1)", completed.stdout)
        self.assertNotIn("```", completed.stdout)

    def test_the_guide_names_rules_with_their_verdicts(self):
        guide = sections((ROOT / "apex_cpp/porting.md").read_text(), "##")
        chapters = {"Calls": {"exact", "renamed"}, "What behaves differently": {"behaves differently"}, "What has no counterpart": {"none"}}
        for chapter, verdicts in chapters.items():
            ids = [id for row in re.findall(r"^\| (APX[^|]*) \|", guide[chapter], flags=re.M) for id in row.split(", ")]
            self.assertGreater(len(ids), 5)
            self.assertEqual(len(set(ids)), len(ids))
            for id in ids:
                with self.subTest(id):
                    self.assertIn(re.search(r"^\*\*(.+)\*\*", self.rules[id], flags=re.M)[1], verdicts)
        for id in re.findall(r"APX\d+", "".join(guide.values())):
            self.assertIn(id, self.rules)


if __name__ == "__main__":
    unittest.main()
