"""The rules of mutation.py on a small source: which mutants it has, that a build with all of them behaves as the original until one is
switched on, and which are chosen."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

COMPILER, ROOT = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tests/mutation"))
import rules  # noqa: E402
import source_tree  # noqa: E402

SOURCE = b"""
#include <cstdio>
#include <mutex>
#include <stdexcept>
#define TORCH_CHECK(condition, ...) if (!(condition)) throw std::runtime_error("check")
namespace at { enum Type { kFloat, kHalf, kBFloat16 }; }

constexpr int twice(int x) { return x + 2; }
std::mutex mutex;
int calls = 0;
void count() { ++calls; }

int value(int x) {
  const std::lock_guard<std::mutex> lock(mutex);
  TORCH_CHECK(x >= 0, "negative");
  if (x == 7) return -1;
  count();
  const at::Type type = at::kFloat;
  int sum = 0;
  for (int i = 0; i < x; ++i) sum = sum + i;
  if (type == at::kHalf && x > 1) {
    sum = 0;
  } else {
    sum -= 3;
  }
  return x > 2 ? sum * 5 : sum;
}

int main() {
  for (int x : {1, 2, 3, 7}) std::printf("%d ", value(x));
  try { std::printf("%d ", value(-1)); } catch (const std::runtime_error&) { std::printf("threw "); }
  std::printf("%d %d", calls, static_cast<int>(mutex.try_lock()));
}
"""


class Rules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mutants = rules.candidates(SOURCE)
        separate = {}
        for mutant in cls.mutants:  # those that are inside of another one are left out
            if all(mutant.end <= other.start or other.end <= mutant.start for other in separate.values()):
                separate[len(separate) + 1] = mutant
        cls.separate = separate
        cls.folder = tempfile.TemporaryDirectory(prefix="apex_cpp-mutation-")
        source = pathlib.Path(cls.folder.name) / "program.cpp"
        source.write_bytes(b"#include <tests/mutation/mutants.h>\n" + rules.apply(SOURCE, separate))
        subprocess.run([COMPILER, "-std=c++17", f"-I{ROOT}", str(source), "-o", str(source.with_suffix(""))], check=True)
        cls.program = str(source.with_suffix(""))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_with(self, **variables):
        return subprocess.run([self.program], env={**os.environ, **variables}, capture_output=True, text=True, timeout=20).stdout

    def of_rule(self, rule):
        return [(mutant.original, mutant.fault) for mutant in self.mutants if mutant.rule == rule]

    def test_every_rule_finds_its_places(self):
        self.assertEqual(self.of_rule("check"), [("x >= 0", "true")])
        self.assertEqual(self.of_rule("guard"), [("x == 7", "false")])
        self.assertEqual(self.of_rule("branch"), [("type == at::kHalf && x > 1", "!(type == at::kHalf && x > 1)"), ("x > 2", "!(x > 2)")])
        self.assertEqual(self.of_rule("logic"), [("type == at::kHalf && x > 1", "type == at::kHalf || x > 1")])
        self.assertEqual(self.of_rule("sign"), [("sum + i", "sum - i"), ("sum * 5", "sum / 5")])
        self.assertEqual(self.of_rule("dtype"), [("at::kFloat", "at::kHalf"), ("at::kHalf", "at::kBFloat16")])
        self.assertEqual(self.of_rule("lock"), [("const std::lock_guard<std::mutex> lock(mutex);", "nothing")])
        self.assertIn(("count();", "nothing"), self.of_rule("statement"))
        self.assertIn(("i < x", "i <= x"), self.of_rule("bound"))
        self.assertIn(("5", "6"), self.of_rule("off by one"))

    def test_leaves_out_what_the_compiler_evaluates(self):
        self.assertNotIn(("x + 2", "x - 2"), self.of_rule("sign"))

    def test_a_build_with_mutants_behaves_as_the_original(self):
        self.assertEqual(self.run_with(), "-3 -2 0 -1 threw 3 1")

    def test_a_mutant_that_is_switched_on_changes_the_output(self):
        outputs = {mutant.original: self.run_with(APEX_MUTANT=str(number)) for number, mutant in self.separate.items()}
        self.assertEqual(outputs["x >= 0"], "-3 -2 0 -1 -3 4 1")
        self.assertEqual(outputs["count();"], "-3 -2 0 -1 threw 0 1")
        self.assertEqual(outputs["x == 7"], "-3 -2 0 90 threw 4 1")

    def test_notes_what_is_reached(self):
        bits = pathlib.Path(self.folder.name) / "bits"
        bits.write_bytes(bytes(rules.LIMIT))
        self.run_with(APEX_MUTANTS_REACHED=str(bits))
        reached = {number for number, hit in enumerate(bits.read_bytes()) if hit}
        never = {number for number, mutant in self.separate.items() if mutant.original in ("sum = 0;", "x > 1")}
        self.assertEqual(reached, set(self.separate) - never)


class Choice(unittest.TestCase):
    def test_a_change_leaves_the_mutants_in_other_places(self):
        changed = SOURCE.replace(b"  if (x == 7) return -1;\n", b"")
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(source_tree, "ROOT", pathlib.Path(folder)):
            path = pathlib.Path(folder, "kernels/value.cpp")
            path.parent.mkdir()

            def chosen(source, seed):
                path.write_bytes(source)
                taken = source_tree.choose(15, seed)["kernels/value.cpp"]
                return {(mutant.rule, mutant.original, mutant.fault) for mutant in taken.values()}

            before = chosen(SOURCE, seed=1)
            gone = {mutant for mutant in before if "x == 7" in mutant[1] or mutant[1] in ("7", "1")}
            self.assertLess(len(gone), len(before))
            self.assertLessEqual(before - gone, chosen(changed, seed=1))
            self.assertNotEqual(before, chosen(SOURCE, seed=2))


if __name__ == "__main__":
    unittest.main()
