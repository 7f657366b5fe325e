"""Whether matrix.py finds each kind of fault in made-up results."""
import unittest

import matrix

SEEDS = 5
AT_O0 = [79.0, 79.5, 80.0, 80.5, 81.0]


def good_results():
    """Every combination ends as O0 does with the same seed; FP16's losses depend on the loss scale and on batch norm's dtype."""
    results = {}
    for cell in matrix.cells():
        canonical = cell
        while matrix.twin(canonical):
            canonical = matrix.twin(canonical)
        accuracies = [0.0] * SEEDS if cell[:2] in matrix.EXPLAINED else AT_O0
        for seed in range(SEEDS):
            run = matrix.Run(*cell, str(seed))
            results[run] = matrix.Result(*run, f"{accuracies[seed]:.2f}", "0", "trained", f"{canonical} {seed}")
    return results


class Matrix(unittest.TestCase):
    def setUp(self):
        self.results = good_results()

    def change(self, cell, **fields):
        for seed in range(SEEDS):
            run = matrix.Run(*cell, str(seed))
            self.results[run] = self.results[run]._replace(**fields)

    def test_has_every_combination(self):
        self.assertEqual(len(matrix.cells()), len(set(matrix.cells())))
        self.assertEqual(len(matrix.cells()), 6 * 4 * (3 + 3 * 3) + 1 + len(matrix.STORED))

    def test_good_results_have_no_fault(self):
        self.assertEqual(matrix.faults(self.results, SEEDS), [])

    def test_a_worse_and_a_better_mean_are_faults(self):
        for accuracy in ("78.90", "81.10"):
            for cell in (("FusedAdam", "O1", "none", "none"), ("FusedAdam int8", "O5", "none", "none")):
                self.results = good_results()
                self.change(cell, test_accuracy=accuracy)
                self.assertEqual(len(matrix.faults(self.results, SEEDS)), 1)

    def test_an_explanation_that_no_longer_holds_is_a_fault(self):
        for pair in matrix.EXPLAINED:
            self.results = good_results()
            for cell in matrix.cells():
                if cell[:2] == pair:
                    self.change(cell, test_accuracy="80.00")
            self.assertEqual(matrix.faults(self.results, SEEDS), [f"{' '.join(pair)}: ends as O0, not as explained"])

    def test_twins_with_other_losses_are_faults(self):
        for cell in (
            ("SGD", "O5", "128", "none"),
            ("SGD", "O2", "dynamic", "true"),
            ("SGD", "O3", "1", "false"),
            ("SGD", "O0", "128", "none"),
            ("SGD", "O4", "dynamic", "none"),
            ("SGD", "O1", "dynamic", "none"),
        ):
            self.results = good_results()
            self.change(cell, losses="others")
            self.assertIn("not the losses of", matrix.faults(self.results, SEEDS)[0])

    def test_the_table_has_a_row_for_each_optimizer(self):
        rows = matrix.table(self.results, SEEDS).split("\n")
        self.assertEqual(len(rows), 2 + len(matrix.OPTIMIZERS) + 1 + 3 + len(matrix.STORED))
        self.assertIn("79.00 to 81.00", rows[2])


if __name__ == "__main__":
    unittest.main()
