"""tools/gpu.py on programs that print what GoogleTest, compute-sanitizer and the training program print."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

RUNNER = sys.argv.pop(1)
PASSES = """echo '[ RUN      ] Suite.Passes'; echo '[       OK ] Suite.Passes (1 ms)'"""
FAILS = """echo '[ RUN      ] Suite.Fails'; echo '[  FAILED  ] Suite.Fails (1 ms)'; exit 1"""


def skips(reason):
    return f"""{PASSES}; echo '[ RUN      ] Suite.Skips'; echo 'file.cpp:1: Skipped'; echo '{reason}'; echo '[  SKIPPED ] Suite.Skips (0 ms)'"""


class Gpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="apex_cpp-gpu-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.program("nvidia-smi", "echo 'Some GPU, 1.2, 3 MiB'")

    def program(self, name, body):
        path = self.folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run_stage(self, stage, rows):
        """Exit code, the report, and its text in Markdown."""
        table = self.folder / "tests/cuda/on_gpu.txt"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("# program, filter, how\n" + rows)
        ended = subprocess.run(
            [sys.executable, RUNNER, "--binaries", self.folder / "bin", "--source", self.folder, "--out", self.folder / "out", "--only", stage],
            stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"})
        out = self.folder / "out"
        return ended.returncode, json.loads((out / "report.json").read_text()), (out / "report.md").read_text()

    def test_counts_what_passed(self):
        self.program("a_tests", PASSES)
        code, report, text = self.run_stage("test", "a_tests *\n")
        self.assertEqual((code, report["test"][0]["passed"], report["test"][0]["failed"]), (0, 1, []))
        self.assertEqual(report["machine"]["gpu"], "Some GPU")
        self.assertIn("1 passed, 0 failed", text)

    def test_trains_with_the_program_in_the_folder_of_its_name(self):
        self.program("a_tests", PASSES)
        self.program("examples/train/train", "echo 'test accuracy 99 %'")
        code, report, _ = self.run_stage("test", "a_tests *\n")
        self.assertEqual((code, report["train"][0]["last line"]), (0, "test accuracy 99 %"))

    def test_names_what_failed(self):
        self.program("a_tests", FAILS)
        code, report, text = self.run_stage("test", "a_tests *\n")
        self.assertEqual((code, report["test"][0]["failed"]), (1, ["Suite.Fails"]))
        self.assertIn("- failed: a_tests Suite.Fails", text)

    def test_a_skip_is_a_failure_unless_it_needs_another_machine(self):
        self.program("a_tests", skips("needs a GPU, and LibTorch finds none"))
        self.program("b_tests", skips("needs 2 GPUs, and LibTorch finds 1"))
        code, report, _ = self.run_stage("test", "a_tests *\nb_tests *\n")
        self.assertEqual(code, 1)
        self.assertEqual(report["test"][0]["failed"], ["Suite.Skips: skipped (needs a GPU, and LibTorch finds none)"])
        self.assertEqual((report["test"][1]["failed"], list(report["test"][1]["skipped"])), ([], ["Suite.Skips"]))

    def test_no_test_and_no_program_are_failures(self):
        self.program("a_tests", "echo nothing")
        self.program("b_tests", "kill -9 $$")
        code, report, _ = self.run_stage("test", "a_tests *\nb_tests *\nc_tests *\n")
        self.assertEqual(code, 1)
        self.assertIn("no test ran", report["test"][0]["failed"][0])
        self.assertIn("exit code -9", report["test"][1]["failed"][0])
        self.assertEqual(report["test"][2]["failed"], ["the program was not built"])

    def test_runs_each_test_by_itself_and_shards(self):
        self.program("a_tests", f"""case "$*" in *list_tests*) printf 'Suite.\\n  One\\n  Two\\n' ;; *) echo "$*" >>{self.folder}/calls; {PASSES} ;; esac""")
        self.program("b_tests", f"""echo "shard $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS" >>{self.folder}/calls; {PASSES}""")
        self.program("c_tests", f"""echo "$*" >>{self.folder}/calls; {PASSES}""")
        code, _, _ = self.run_stage("test", "a_tests * each\nb_tests * shards 2\nc_tests X* ranks 2\n")
        self.assertEqual(code, 0)
        self.assertEqual(sorted((self.folder / "calls").read_text().splitlines()),
                         ["--gtest_filter=Suite.One", "--gtest_filter=Suite.Two", "--ranks 2 --gtest_filter=X*", "shard 0 of 2", "shard 1 of 2"])

    def test_reads_the_sanitizers_summaries(self):
        for program in ("cuda_tests", "normalization_tests", "contrib_tests", "statistics_tests"):
            self.program(program, PASSES)
        self.program("compute-sanitizer", f"""{PASSES}; echo '========= ERROR SUMMARY: 0 errors'""")
        code, report, text = self.run_stage("check", "a_tests *\n")
        self.assertEqual((code, len(report["check"]), report["check"][0]["summary"]), (0, 16, "0 errors"))
        self.program("compute-sanitizer", "echo '========= ERROR SUMMARY: 3 errors'; exit 77")
        code, report, text = self.run_stage("check", "a_tests *\n")
        self.assertEqual(code, 1)
        self.assertIn("| memcheck | cuda_tests | 0 | 3 errors |", text)

    def test_profiles_where_ncu_is_and_may_read_counters(self):
        self.program("bench", "echo figures")
        self.program("ncu", "echo kernel,metric")
        code, report, text = self.run_stage("bench", "a_tests *\n")
        self.assertEqual((code, report["ncu"]["summary"], len(report["bench"])), (0, "ncu.csv", 5))
        self.assertIn("kernel,metric", (self.folder / "out/ncu.csv").read_text())
        self.program("ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1")
        code, report, text = self.run_stage("bench", "a_tests *\n")
        self.assertEqual((code, report["ncu"]["summary"]), (0, "ERR_NVGPUCTRPERM - no permission"))
        self.assertIn("ERR_NVGPUCTRPERM", text)


if __name__ == "__main__":
    unittest.main()
