"""Both ways to register an operator cast its arguments; without a registration the float32-only kernel refuses 16-bit tensors."""
from support import EXAMPLE, Example, main, numbers


class CustomOp(Example):
    def check(self, output, half):
        self.assertIn(f"custom::low_rank: Float in, 3 casts, {half} out", output)
        self.assertIn(f"custom::snake: {half} in, 1 casts, Float out", output)
        losses = numbers(r"loss ([\d.]+)", output)
        self.assertEqual(losses, sorted(losses, reverse=True))
        self.assert_better_than_chance(numbers(r"accuracy ([\d.]+)", output)[-1])

    def test_registered_in_code(self):
        self.check(self.program("custom_op", "digits.csv", 3), "Half")

    def test_registered_in_the_level_file(self):
        self.check(self.program("custom_op", "digits.csv", 3, EXAMPLE / "o4.yaml"), "BFloat16")

    def test_without_registration_the_kernel_refuses_16_bits(self):
        (self.folder / "o1.yaml").write_text("opt_level: O1\n")
        self.assertIn("custom::snake: x is Half", self.program("custom_op", "digits.csv", 1, "o1.yaml", code=1))

    def test_epochs_are_a_number(self):
        self.assert_epochs_are_checked("custom_op", "digits.csv")


main()
