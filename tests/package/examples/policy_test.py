"""Each policy has the same dtypes as in TensorFlow, and learns."""
from support import Example, main, numbers

DTYPES = {"float32": ("Float", "Float"), "mixed_float16": ("Half", "Float"), "mixed_bfloat16": ("BFloat16", "Float"),
          "float16": ("Half", "Half"), "bfloat16": ("BFloat16", "BFloat16")}  # computes in, variables


class Policy(Example):
    def test_policies_train(self):
        for policy, (compute, variables) in DTYPES.items():
            output = self.program("policy", "digits.csv", policy, 3)
            self.assertIn(f"policy {policy}: compute dtype {compute}, variable dtype {variables}\n", output)
            self.assertIn(f"variables {variables}, computes in {compute}\n", output)
            self.assert_better_than_chance(numbers(r"accuracy ([\d.]+)", output)[-1])

    def test_another_name_is_an_error_that_lists_the_names(self):
        output = self.program("policy", "digits.csv", "mixed_float8", code=1)
        for policy in DTYPES:
            self.assertIn(policy, output)

    def test_epochs_are_a_number(self):
        self.assert_epochs_are_checked("policy", "digits.csv", "float32")


main()
