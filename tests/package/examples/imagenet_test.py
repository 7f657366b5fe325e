"""Digits on coloured grounds, as JPEG files: the program learns them, resumes bit for bit, and trains in two processes."""
import json
import os
import socket
import struct
import subprocess
import sys

import numpy
from PIL import Image
from safetensors.numpy import save_file

from support import PROGRAMS, SKIPPED, Example, main, numbers

GROUNDS = {"blue": (40, 60, 200), "green": (30, 160, 60), "grey": (90, 90, 90), "red": (200, 40, 40)}
TRAIN, VAL = 16, 8  # images of a class
SMALL = ("-b", 8, "-j", 1, "--crop-size", 32, "--val-size", 36, "--lr", 0.3, "-p", 4, "--deterministic")


def write_images(folder, digits):
    rows = iter([[int(number) for number in line.split(",")] for line in digits.splitlines()])
    for name, ground in GROUNDS.items():
        for number in range(TRAIN + VAL):
            ink = Image.new("L", (8, 8))
            ink.putdata([min(255, 16 * value) for value in next(rows)[:64]])
            ink = ink.resize((40 + number % 9, 44), Image.BICUBIC)
            image = Image.composite(Image.new("RGB", ink.size, (250, 250, 220)), Image.new("RGB", ink.size, ground), ink)
            if name == "grey" and number % 2:
                image = image.convert("L")
            if name == "red" and number % 4 == 0:
                image = image.convert("CMYK")
            part = folder / "images" / ("train" if number < TRAIN else "val") / name
            part.mkdir(parents=True, exist_ok=True)
            image.save(part / f"{number:02}.{'JPEG' if number % 2 else 'jpg'}", quality=90)


def checkpoint_header(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length])


def resnet_shapes(blocks, classes):
    """Name and shape of every weight of torchvision's bottleneck ResNets."""
    shapes = {}

    def add(name, out, *rest):
        shapes[f"{name}.weight"] = (out, *rest)

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    add("conv1", 64, 3, 7, 7)
    norm("bn1", 64)
    channels = 64
    for stage, count in enumerate(blocks, 1):
        width = 32 * 2**stage
        for block in range(count):
            at = f"layer{stage}.{block}"
            for number, (into, out, size) in enumerate([(channels, width, 1), (width, width, 3), (width, 4 * width, 1)], 1):
                add(f"{at}.conv{number}", out, into, size, size)
                norm(f"{at}.bn{number}", out)
            if block == 0:
                add(f"{at}.downsample.0", 4 * width, channels, 1, 1)
                norm(f"{at}.downsample.1", 4 * width)
            channels = 4 * width
    shapes["fc.weight"], shapes["fc.bias"] = (classes, channels), (classes,)
    return shapes


class Imagenet(Example):
    def setUp(self):
        super().setUp()
        write_images(self.folder, self.digits)

    def imagenet(self, *arguments, **options):
        return self.program("imagenet", "../images", *SMALL, *arguments, **options)

    def test_it_learns_and_resumes(self):
        flags = ("--opt-level", "O2", "--channels-last", "--loss-scale", "128.0")
        whole = self.imagenet(*flags, "--epochs", 2, within="whole")
        self.assertRegex(whole, r"loss_scale +: 128")
        learned = numbers(r"\[8/8\].*Prec@1 [\d.]+ \(([\d.]+)\)", whole)  # of the images it was trained with, as it went on
        self.assertEqual(len(learned), 2)
        self.assert_better_than_chance(learned[-1] / 100, len(GROUNDS), TRAIN * len(GROUNDS))
        accuracies = numbers(r"\* Prec@1 ([\d.]+)", whole)

        self.imagenet(*flags, "--epochs", 1, "-j", 2, within="parts")  # with another number of threads, too
        second = self.imagenet(*flags, "--epochs", 2, "--resume", "checkpoint.ckpt", within="parts")
        self.assertIn("loaded checkpoint 'checkpoint.ckpt' (epoch 1)", second)
        self.assertNotIn("Epoch: [0]", second)
        self.assertEqual(*((self.folder / run / "checkpoint.ckpt").read_bytes() for run in ("whole", "parts")))

        best = self.imagenet(*flags, "-e", "--resume", "model_best.ckpt", within="whole")
        self.assertEqual(numbers(r"\* Prec@1 ([\d.]+)", best), [max(accuracies)])

    def two_processes(self, *arguments):
        """The outputs of ranks 0 and 1."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        other = subprocess.Popen([PROGRAMS / "imagenet", "images", *map(str, arguments)], cwd=self.folder, text=True,
                                 env={**os.environ, **env, "RANK": "1", "LOCAL_RANK": "1"}, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT)
        self.addCleanup(other.kill)
        output = self.program("imagenet", "images", *arguments, env={**env, "RANK": "0", "LOCAL_RANK": "0"})
        silent = other.communicate()[0]
        self.assertEqual(other.returncode, 0, silent)
        return output, silent

    def test_two_processes_train_one_network(self):
        self.drop_validation_images(keep=31)  # that two processes share unevenly
        output, silent = self.two_processes(*self.distributed)
        self.assertNotIn("Epoch:", silent)
        self.assertIn("Epoch: [0][4/4]", output)  # 32 images a process, 8 at a time
        # Both ranks have the same batch norm statistics and weights: the checkpoint has the accuracy that both report.
        evaluation = (*self.distributed, "-e", "--resume", "checkpoint.ckpt")
        alone = self.precision(self.program("imagenet", "images", *evaluation))
        self.assertEqual(alone, self.precision(output))
        self.assertTrue(0 < alone < 100)  # else fewer images could have the same precision
        self.assertAlmostEqual(alone * 31 / 100, round(alone * 31 / 100), delta=31e-5)  # printed with three digits

        self.drop_validation_images(keep=1)  # of which one process has none
        self.assertEqual(self.precision(self.two_processes(*evaluation)[0]),
                         self.precision(self.program("imagenet", "images", *evaluation)))

    def precision(self, output):
        found, = numbers(r"\* Prec@1 ([\d.]+)", output)
        return found

    def drop_validation_images(self, keep):
        for path in sorted(self.folder.glob("images/val/*/*"))[keep:]:
            path.unlink()

    distributed = (*SMALL, "--opt-level", "O1", "--sync_bn", "--epochs", 1)

    def test_resnet50_takes_the_weights_of_torchvision(self):
        weights = {name: numpy.zeros(shape, numpy.int64 if "tracked" in name else numpy.float32)
                   for name, shape in resnet_shapes((3, 4, 6, 3), len(GROUNDS)).items()}
        self.assertEqual(sum(weight.size for name, weight in weights.items() if "running" not in name and "tracked" not in name),
                         25_557_032 - 2049 * (1000 - len(GROUNDS)))  # as torchvision counts them, with 4 classes for 1000
        save_file(weights, self.folder / "resnet50.safetensors")
        output = self.imagenet("-a", "resnet50", "--pretrained", "../resnet50.safetensors", "--opt-level", "O0", "-e", within="run")
        self.assertEqual(numbers(r"\* Prec@1 ([\d.]+)", output), [25.0])  # all logits are 0: the first class for each image

    def test_bad_flags_and_files_are_errors(self):
        self.assertIn("--arch", self.program("imagenet", "images", "-a", "resnet19", code=105))
        self.assertIn('loss_scale="128x" is not a number', self.imagenet("--loss-scale", "128x", within="run", code=1))
        broken = self.folder / "images/train/red/00.jpg"
        whole = broken.read_bytes()
        for data, message in ((b"no JPEG", "Not a JPEG file"), (whole[:len(whole) // 2], "Premature end of JPEG file"),
                              (b"\x89PNG\r\n\x1a\n", "")):
            broken.write_bytes(data)
            self.assertIn(f"00.jpg: {message}", self.imagenet("--epochs", 1, within="run", code=1))

    def test_bytes_that_libjpeg_passes_over_are_no_error(self):
        path = self.folder / "images/val/blue/17.JPEG"
        data = path.read_bytes()
        end = data.index(b"\xff\xda")  # where the compressed data begin
        path.write_bytes(data[:end] + b"some" + data[end:])
        self.imagenet("-e", within="run")

    def test_a_png_is_read_whatever_its_name(self):
        evaluation = ("--opt-level", "O0", "-e", "-p", 1)

        def losses():
            return numbers(r"Loss ([\d.]+) ", self.imagenet(*evaluation, within="run"))

        expected = losses()
        for path in self.folder.glob("images/val/*/*"):
            with Image.open(path) as image:
                image.load()
            if image.mode != "CMYK":  # which PNG does not have
                image.save(path, format="PNG")
        self.assertEqual(len(expected), VAL * len(GROUNDS) // 8)
        self.assertEqual(losses(), expected)

    def test_train_and_val_need_the_same_classes(self):
        (self.folder / "images/val/.ipynb_checkpoints").mkdir()
        (self.folder / "images/val/red").rename(self.folder / "images/val/cyan")
        output = self.imagenet("-e", within="run", code=1)
        self.assertIn("images/val has a folder for the class 'cyan', and ../images/train has none", output)
        (self.folder / "images/val/cyan").rename(self.folder / "images/val/red")
        (self.folder / "images/val/blue").rename(self.folder / "blue")
        output = self.imagenet("-e", within="run", code=1)
        self.assertIn("images/train has a folder for the class 'blue', and ../images/val has none", output)
        (self.folder / "blue").rename(self.folder / "images/val/blue")
        self.imagenet("-e", within="run")


if not (PROGRAMS / "imagenet").exists():
    print("skipped: imagenet was not built, since libjpeg-dev or libpng-dev is not installed")
    sys.exit(SKIPPED)
main()
