"""What `tools/bench instructions` says of counts beside its table."""
import contextlib
import io
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv.pop(1))))
import instructions  # noqa: E402


class Instructions(unittest.TestCase):
    def compare(self, counts, table):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            return instructions.compare(counts, table), printed.getvalue()

    def test_two_percent_more_are_allowed_and_no_more(self):
        self.assertEqual(self.compare({"a": 1020, "b": 100}, {"a": 1000, "b": 1000})[0], 0)
        bad, printed = self.compare({"a": 1021, "b": 1000}, {"a": 1000, "b": 1000})
        self.assertEqual(bad, 1)
        self.assertRegex(printed, r"a +1021 +1000 \+2.10 % more than allowed\nb +1000 +1000 \+0.00 %\n")

    def test_a_case_on_one_side_alone_differs(self):
        self.assertEqual(self.compare({"a": 1, "new": 1}, {"a": 1, "old": 1})[0], 2)

    def test_the_table_has_cases(self):
        self.assertGreater(len(instructions.read_table()), 10)


unittest.main()
