"""The port changes three lines, as the README shows, and the ported program learns as well as the original."""
import difflib
import zipfile

from support import EXAMPLE, TEST_DIGITS, Example, deviation, main, numbers, readme_block

PROGRAMS = ("classifier", "recurrent")


def changed_lines(program):
    """The changed lines of both sides, from `diff`, without line numbers and indentation."""
    before, after = ((EXAMPLE / side / f"{program}.cpp").read_text().splitlines() for side in ("before", "after"))
    lines = [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if not line.startswith(("---", "+++", "@@"))]
    return [line[0] + line[1:].strip() for line in lines]


class Porting(Example):
    def test_the_port_is_three_lines(self):
        for program in PROGRAMS:
            lines = changed_lines(program)
            self.assertEqual([line[0] for line in lines], ["+", "+", "-", "+"], program)
            self.assertEqual(lines[2], "-loss.backward();")

    def test_the_readme_shows_the_true_difference(self):
        shown = readme_block("diff").splitlines()
        for program in PROGRAMS:
            self.assertEqual(shown, changed_lines(program))

    def test_the_ported_programs_learn_as_well(self):
        for program, epochs in (("classifier", 4), ("recurrent", 8)):
            accuracy, saved = {}, {}
            for side in ("before", "after"):
                output = self.program(f"{program}_{side}", "../digits.csv", epochs, within=side)
                accuracy[side] = numbers(r"accuracy ([\d.]+)", output)[-1]
                with zipfile.ZipFile(self.folder / side / f"{program}.pt") as archive:
                    saved[side] = {entry.filename: entry.file_size for entry in archive.infolist() if "/data/" in entry.filename}
            self.assert_better_than_chance(accuracy["before"])
            # Both are accuracies on the same test digits: their difference has sqrt(2) times the deviation of one.
            margin = 4 * 2**0.5 * deviation(accuracy["before"], TEST_DIGITS)
            self.assertGreater(accuracy["after"], accuracy["before"] - margin, program)
            # The same tensors with the same sizes in bytes: FP32.
            self.assertGreater(len(saved["before"]), 0)
            self.assertEqual(saved["after"], saved["before"])

    def test_epochs_are_a_number(self):
        for program in PROGRAMS:
            for side in ("before", "after"):
                self.assert_epochs_are_checked(f"{program}_{side}", "digits.csv")


main()
