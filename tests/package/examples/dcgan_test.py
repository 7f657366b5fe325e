"""A short training at O1: the generator gets closer to the digits than any single image, and each loss has its own scale."""
import statistics

import numpy
from safetensors.numpy import load_file

from support import Example, main, numbers


class Dcgan(Example):
    def test_the_generator_learns(self):
        output = self.program("dcgan", "digits.csv", "O1", 8)
        distances = numbers(r"distance ([\d.]+)", output)
        # A generator that always returned the mean image would have this distance: the norm of the pixels' standard deviations.
        rows = [[int(number) / 8 - 1 for number in line.split(",")[:64]] for line in self.digits.splitlines()]
        one_image = sum(statistics.variance(pixel) for pixel in zip(*rows)) ** 0.5
        self.assertGreater(distances[0], one_image)
        self.assertLess(distances[-1], one_image)

        scales = numbers(r"loss_scaler\d: (\d+)", output)
        self.assertEqual(len(scales), 3)
        self.assertTrue(all(scale >= 1 and scale == 2 ** (int(scale).bit_length() - 1) for scale in scales), scales)
        # Every step updates each of them: none keeps its initial value.
        unskipped = numbers(r"loss_scaler\d: \d+, (\d+) steps unskipped", output)
        self.assertEqual(len(unskipped), 3)
        self.assertTrue(all(unskipped), unskipped)
        self.check_images()
        for name in ("generator", "discriminator"):
            weights = load_file(self.folder / f"{name}.safetensors")
            self.assertTrue(all(numpy.isfinite(weight).all() for weight in weights.values()))

    def check_images(self):
        """64 different digits of 8x8 pixels."""
        image = (self.folder / "samples.pgm").read_bytes()
        header = b"P5 64 64 255\n"
        self.assertTrue(image.startswith(header))
        pixels = image[len(header):]
        self.assertEqual(len(pixels), 64 * 64)
        digits = {bytes(pixels[64 * (8 * row + y) + 8 * column + x] for y in range(8) for x in range(8))
                  for row in range(8) for column in range(8)}
        self.assertEqual(len(digits), 64)

    def test_a_file_of_another_form_is_an_error(self):
        (self.folder / "digits.csv").write_text("1,2,three\n")
        self.assertIn("digits.csv: expected lines of 64 grey values", self.program("dcgan", code=1))

    def test_a_missing_file_is_an_error_with_its_reason(self):
        (self.folder / "digits.csv").unlink()
        self.assertIn("cannot open digits.csv: No such file or directory. tools/setup downloads the digits", self.program("dcgan", code=1))

    def test_bad_arguments_are_errors(self):
        self.assert_epochs_are_checked("dcgan", "digits.csv", "O1")
        self.assertIn("O9", self.program("dcgan", "digits.csv", "O9", 1, code=1))


main()
