"""The reports of tools/port_check, its baseline and its exit codes."""
import json
import os
import pathlib
import re
import tempfile
import unittest

from support import ToolTest, run


class Reports(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("train.py", 'from apex import amp\nfrom apex.contrib.sparsity import ASP\nparser.add_argument("--opt-level")\n'
                   "amp.initialize(m, o)\namp.initialize(m, o)\nASP.prune_trained_model(m, o)\namp.register_half_function(F, 'f')\n")
        self.write("sub/plain.py", "print(1)\n")

    def text(self, *arguments):
        return run(".", *arguments, cwd=self.folder).stdout

    def test_text_has_a_line_for_each_use_and_a_counterpart_for_each_rule(self):
        text = self.text()
        self.assertRegex(text, r"(?m)^train\.py:4 APX001 exact \(effort low\): apex\.amp\.initialize$")
        self.assertRegex(text, r"(?m)^train\.py:6 APX627 none \(effort medium\): apex\.contrib\.sparsity\.ASP\.prune_trained_model$")
        self.assertEqual(text.count('auto [net, opt] = amp::initialize(model, optimizer, "O2");\n    note: Returns'), 1)
        self.assertIn("\n    nearest: your own mask", text)
        totals = ["2 files read, 1 use Apex", "4 of 4 calls classified, 5 of 5 uses"]
        totals += ["verdicts: 3 exact, 0 renamed, 1 behaves differently, 1 none", "effort: 1 none, 3 low, 1 medium, 0 high"]
        self.assertEqual(text.splitlines()[-4:], totals)

    def test_text_lists_again_what_needs_a_look(self):
        self.write("own.cpp", "void multi_tensor_scale_cuda();\n")
        lines = self.text().splitlines()
        start = lines.index("Check these: they behave differently, or have no counterpart.")
        behaves, none = "behaves differently (effort low)", "none (effort medium)"
        self.assertEqual(lines[start + 1 : -4], [f"  own.cpp:1 APX526 {behaves}: multi_tensor_scale_cuda",
                                                 f"  train.py:6 APX627 {none}: apex.contrib.sparsity.ASP.prune_trained_model",
                                                 f"  train.py:7 APX025 {behaves}: apex.amp.register_half_function"])
        self.assertNotIn("Check these", self.text("--only", "none"))

    def test_only_shows_findings_with_these_verdicts(self):
        def rules_in(text):
            return re.findall(r"(?m)^\S+:\d+ (APX\d+)", text)

        self.write("more.py", "import apex\napex.amp.unheard_of()\n")
        self.assertEqual(rules_in(self.text("--only", "none")), ["APX627"])
        self.assertEqual(rules_in(self.text("--only", "unclassified, behaves-differently")), ["APX000", "APX025"])
        self.assertEqual(rules_in(self.text("--only", "renamed")), [])
        self.assertEqual(self.text("--only", "none").splitlines()[-4:], self.text().splitlines()[-4:])
        report = self.check("--only", "exact", code=1)
        self.assertEqual({found["verdict"] for found in report["findings"]}, {"exact"})
        self.assertEqual(report["totals"], self.check(code=1)["totals"])
        results = json.loads(self.text("--format", "sarif", "--only", "none"))["runs"][0]["results"]
        self.assertEqual([result["ruleId"] for result in results], ["APX627"])
        refused = run(".", "--only", "none,nothing", cwd=self.folder)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--only: unknown verdict 'nothing': give exact, renamed, behaves-differently, none, unclassified", refused.stderr)

    def snippet(self, rule, source):
        """What the report shows for the rule's first use in a source."""
        self.write("train.py", "from apex import amp\n" + source)
        return next(found["snippet"] for found in self.check()["findings"] if found["rule"] == rule)

    def test_snippets_have_the_names_of_the_program(self):
        renamed = "net_D, opt_D = amp.initialize(self.D, sgd, opt_level='O2')\nwith amp.scale_loss(err_D, opt_D) as scaled: scaled.backward()\n"
        self.assertEqual(self.snippet("APX001", renamed), 'auto [net_D, opt_D] = amp::initialize(D, sgd, "O2");\n')
        in_block = "{\n  auto scaled = amp::scale_loss(err_D, opt_D);\n  scaled.backward();\n}\nopt_D.step();\n"
        self.assertEqual(self.snippet("APX013", renamed), in_block)
        # Here C++ needs a second name, which the file's other snippets go on with.
        again = "net, opt = amp.initialize(models=net, optimizers=opt)\namp.master_params(opt)\n"
        self.assertEqual(self.snippet("APX001", again), 'auto [amp_net, amp_opt] = amp::initialize(net, opt, "O2");\n')
        self.assertIn("amp::master_params(amp_opt)", self.snippet("APX020", again))

    def test_snippets_keep_their_names_where_those_of_the_program_are_missing_or_clash(self):
        own = 'auto [net, opt] = amp::initialize(model, optimizer, "O2");\n'
        for source in ("amp.initialize(m, o)", "[a, b], o = amp.initialize([a, b], o)", "a, b = amp.initialize(f(), o)",
                       "a, b = amp.initialize(amp, o)", "a, a = amp.initialize(m, o)", "a = amp.initialize(m, o)"):
            self.assertEqual(self.snippet("APX001", source + "\n"), own, source)

    def test_json_has_all_of_it(self):
        report = self.check(code=1)
        self.assertEqual(report["version"], 1)
        first = report["findings"][0]
        self.assertEqual((first["file"], first["line"], first["column"], first["rule"], first["kind"]), ("train.py", 3, 21, "APX038", "flag"))
        self.assertEqual(set(first), {"file", "line", "column", "name", "kind", "rule", "verdict", "effort", "counterpart", "include",
                                      "snippet", "differs", "page", "text"})
        self.assertEqual(first["page"], "porting_reference.md#apx038")
        totals = report["totals"]
        self.assertEqual(sum(totals["verdicts"].values()), len(report["findings"]))
        self.assertEqual(sum(totals["efforts"].values()), totals["uses"])
        self.assertEqual((totals["calls"], totals["calls_classified"], totals["files"], totals["files_with_apex"]), (4, 4, 2, 1))

    def test_sarif_has_what_its_schema_requires(self):
        log = json.loads(self.text("--format", "sarif"))
        self.assertEqual((log["version"], len(log["runs"])), ("2.1.0", 1))
        self.assertTrue(log["$schema"].endswith("sarif-2.1.0.json"))
        run_of_tool = log["runs"][0]
        rules = run_of_tool["tool"]["driver"]["rules"]
        self.assertEqual(run_of_tool["tool"]["driver"]["name"], "port_check")
        self.assertEqual(len({rule["id"] for rule in rules}), len(rules))
        self.assertEqual(len(run_of_tool["results"]), 5)
        for result in run_of_tool["results"]:
            self.assertEqual(rules[result["ruleIndex"]]["id"], result["ruleId"])
            self.assertIn(result["level"], ("none", "note", "warning", "error"))
            self.assertTrue(result["message"]["text"])
            place = result["locations"][0]["physicalLocation"]
            self.assertRegex(place["artifactLocation"]["uri"], r"^[\w./%-]+$")
            self.assertGreaterEqual(min(place["region"]["startLine"], place["region"]["startColumn"]), 1)
        levels = {result["ruleId"]: result["level"] for result in run_of_tool["results"]}
        self.assertEqual(levels, {"APX038": "note", "APX001": "note", "APX627": "error", "APX025": "warning"})
        for rule in rules:
            self.assertTrue(rule["shortDescription"]["text"] and rule["fullDescription"]["text"] and rule["help"]["text"])

    def test_sarif_uris_are_uris(self):
        self.write("a folder/über.py", "import apex\napex.amp.state_dict()\n")
        results = json.loads(self.text("--format", "sarif"))["runs"][0]["results"]
        uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results}
        self.assertEqual(uris, {"train.py", "a%20folder/%C3%BCber.py"})

    def test_out_writes_the_report_into_a_file(self):
        result = run(".", "--format", "json", "--out", "report.json", cwd=self.folder)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (1, "", "report: report.json\n"))
        self.assertEqual(json.loads((self.folder / "report.json").read_text()), self.check())


class Baseline(ToolTest):
    SOURCE = "from apex import amp\nfrom apex.contrib.sparsity import ASP\nASP.prune_trained_model(m, o)\namp.initialize(m, o)\n"

    def setUp(self):
        super().setUp()
        self.write("train.py", self.SOURCE)
        self.assertEqual(run(".", "--write-baseline", "known.json", cwd=self.folder).returncode, 0)

    def test_what_is_known_is_hidden_wherever_its_line_has_moved(self):
        self.write("train.py", "import os\n\n" + self.SOURCE.replace("(m, o)", "(m,  o)", 0))
        report = self.check("--baseline", "known.json", code=0)
        self.assertEqual((report["findings"], report["totals"]["hidden_by_baseline"]), ([], 2))

    def test_what_is_new_is_shown_also_where_the_same_is_known(self):
        self.write("train.py", self.SOURCE + "ASP.prune_trained_model(m, o)\nASP.prune_trained_model(n, o)\n")
        self.write("other.py", self.SOURCE)
        found = [(each["file"], each["line"]) for each in self.check("--baseline", "known.json", code=1)["findings"]]
        self.assertEqual(found, [("other.py", 3), ("other.py", 4), ("train.py", 5), ("train.py", 6)])

    def test_a_file_that_is_no_baseline_is_refused(self):
        for text in ("", "[]", '{"version": 2, "known": {}}', '{"version": 1, "known": {"a": "b"}}'):
            self.write("bad.json", text)
            result = run(".", "--baseline", "bad.json", cwd=self.folder)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stderr, "port_check: bad.json is not a baseline of this tool: make one with --write-baseline\n")


class ExitCodes(ToolTest):
    def code(self, text):
        self.write("train.py", text)
        return run("train.py", cwd=self.folder).returncode

    def test_counterparts_for_everything(self):
        self.assertEqual(self.code("import apex\napex.amp.state_dict()\n"), 0)
        self.assertEqual(self.code("print(1)\n"), 0)

    def test_none_and_unknown(self):
        self.assertEqual(self.code("import apex\napex.contrib.sparsity.ASP\n"), 1)
        self.assertEqual(self.code("import apex\napex.amp.unheard_of()\n"), 1)

    def test_nothing_to_check(self):
        self.write("notes.txt", "apex\n")
        self.write(".hidden/train.py", "import apex\napex.contrib.sparsity.ASP\n")
        cases = {
            (): "name a source or a folder",
            (".",): "no Python, C++ or CUDA sources in .",
            ("gone.py",): "no such file or folder: gone.py",
            ("notes.txt",): "notes.txt is not a source that this tool reads",
            ("--explain", "APX999"): "no such rule: APX999",
            (".", "--format", "xml"): "invalid choice",
            ("train.py", "--baseline", "gone.json"): "gone.json",
        }
        for arguments, message in cases.items():
            with self.subTest(arguments):
                if "train.py" in arguments:
                    self.write("train.py", "import apex\n")
                result = run(*arguments, cwd=self.folder)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertRegex(result.stderr, re.escape(message))

    def test_what_cannot_be_read_is_told_and_the_rest_is_reported(self):
        self.write("train.py", "import apex\napex.amp.state_dict()\n")
        (self.folder / ".#train.py").symlink_to("user@host.1234")  # an editor's lock
        self.assertEqual(self.check(code=0)["notes"], [])
        (self.folder / "dangling.py").symlink_to("gone.py")
        report = self.check(code=2)
        self.assertEqual([found["rule"] for found in report["findings"]], ["APX018"])
        self.assertEqual((report["notes"], report["totals"]["files"]), (["cannot read dangling.py: No such file or directory"], 1))
        result = run(".", "--write-baseline", "known.json", cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("port_check: cannot read dangling.py: No such file or directory\n", result.stderr)

    def test_a_folder_that_cannot_be_read_is_told(self):
        self.write("train.py", "import apex\napex.amp.state_dict()\n")
        folder = os.open(self.folder, os.O_RDONLY)
        for _ in range(17):  # deeper than a path can be long: not even an administrator reads it by name
            os.mkdir("a" * 250, dir_fd=folder)
            inner = os.open("a" * 250, os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = inner
        os.close(folder)
        report = self.check(code=2)
        self.assertEqual([found["rule"] for found in report["findings"]], ["APX018"])
        self.assertRegex(report["notes"][0], r"^cannot read .*aaa: File name too long$")

    def test_linked_folders_are_read_once(self):
        outside = tempfile.TemporaryDirectory()
        self.addCleanup(outside.cleanup)
        (pathlib.Path(outside.name) / "linked.py").write_text("import apex\napex.amp.unheard_of()\n")
        self.write("inside/train.py", "import apex\napex.amp.state_dict()\n")
        for name, target in {"a_link": "inside", "again": outside.name, "loop": ".", "outside": outside.name}.items():
            (self.folder / name).symlink_to(target)
        report = self.check(code=1)
        self.assertEqual({found["file"] for found in report["findings"]}, {"inside/train.py", "again/linked.py"})
        self.assertEqual(report["totals"]["files"], 2)

    def test_a_source_named_twice_counts_once(self):
        self.write("train.py", "import apex\napex.amp.state_dict()\n")
        result = run("train.py", self.folder / "train.py", ".", "--format", "json", cwd=self.folder)
        self.assertEqual(json.loads(result.stdout)["totals"]["files"], 1)


if __name__ == "__main__":
    unittest.main()
