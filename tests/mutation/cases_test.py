"""Which cases of a test mutation.py runs for a mutant: cases_program.cpp, with five mutants."""
import pathlib
import sys
import tempfile
import unittest

PROGRAM, ROOT = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tests/mutation"))
import mutation  # noqa: E402
from source_tree import Chosen  # noqa: E402


class Cases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tests = {"program": mutation.Test({"name": "program", "command": [PROGRAM]})}
        with tempfile.TemporaryDirectory(prefix="apex_cpp-mutation-") as folder:
            cls.reached = mutation.record(pathlib.Path(folder), cls.tests)
            cls.kept = mutation.record(pathlib.Path(folder), cls.tests)

    def filters(self, number):
        return [cases for _, cases in self.reached["program"].pieces(number)]

    def outcome(self, number):
        chosen = Chosen(number, "sign", "kernels/file.cpp", 1, 0, "", "")
        pieces, later = mutation.in_turns(chosen, self.tests, self.reached)
        self.assertFalse(later)
        return mutation.outcome(chosen, pieces, "survived", self.tests)[0]

    def test_a_mutant_runs_the_cases_that_reach_it(self):
        self.assertEqual(self.filters(2), ["Cases.Compare"])
        self.assertEqual(self.filters(3), ["Cases.DoNotCompare"])

    def test_what_programs_reach_that_a_case_starts(self):
        self.assertEqual(self.filters(5), ["Cases.StartAnotherProgram"])

    def test_a_mutant_of_a_set_up_runs_the_suite(self):
        self.assertEqual(self.filters(4), ["SetUp.*"])

    def test_a_mutant_that_is_reached_outside_of_cases_runs_all(self):
        self.assertEqual(self.filters(1), [""])

    def test_outcomes(self):
        self.assertEqual([self.outcome(number) for number in (1, 2, 3, 4, 5)], ["killed", "killed", "survived", "killed", "killed"])

    def test_cases_that_fail_alone_kill_nothing(self):
        pieces = [("program", "Cases.FailsAlone", 0), ("program", "Cases.Compare", 0)]
        chosen = Chosen(3, "sign", "kernels/file.cpp", 1, 0, "", "")
        self.assertEqual(mutation.outcome(chosen, pieces, "survived", self.tests)[0], "survived")

    def test_a_recorded_test_is_not_run_again(self):
        self.assertEqual(self.kept, self.reached)

    def test_slow_cases_run_after_quick_ones(self):
        cases = {"A.Slow": [50, [7]], "A.Quick": [1, [7]], "A.Other": [1, [8]], "B.Quick": [3, [7]]}
        self.assertEqual(mutation.Reached(0, 60, cases).pieces(7), [(4 + mutation.START, "A.Quick:B.Quick"), (50 + mutation.START, "A.Slow")])

    def test_a_filter_that_is_too_long_is_the_whole_test(self):
        cases = {f"Suite.{'x' * 1000}{number}": [1, [7]] for number in range(200)}
        self.assertEqual(mutation.Reached(0, 60, cases).pieces(7), [(60, "")])


if __name__ == "__main__":
    unittest.main()
