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

    def test_two_processes_train_one_network(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        other = subprocess.Popen([PROGRAMS / "imagenet", "images", *map(str, self.distributed)], cwd=self.folder, text=True,
                                 env={**os.environ, **env, "RANK": "1", "LOCAL_RANK": "1"}, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT)
        self.addCleanup(other.kill)
        output = self.program("imagenet", "images", *self.distributed, env={**env, "RANK": "0", "LOCAL_RANK": "0"})
        silent = other.communicate()[0]
        self.assertEqual(other.returncode, 0, silent)
        self.assertNotIn("Epoch:", silent)
        self.assertIn("Epoch: [0][4/4]", output)  # 32 images a process, 8 at a time
        # Batch norm statistics and weights are one network's: the accuracy that both found is that of the checkpoint.
        alone = self.program("imagenet", "images", *self.distributed, "-e", "--resume", "checkpoint.ckpt")
        self.assertEqual(numbers(r"\* Prec@1 ([\d.]+)", alone), numbers(r"\* Prec@1 ([\d.]+)", output))

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
        broken = self.folder / "images/train/red/00.jpg"
        broken.write_bytes(b"no JPEG")
        self.assertIn("00.jpg: Not a JPEG file", self.imagenet("--epochs", 1, within="run", code=1))


if not (PROGRAMS / "imagenet").exists():
    print("skipped: imagenet was not built, since libjpeg-dev is not installed")
    sys.exit(SKIPPED)
main()
