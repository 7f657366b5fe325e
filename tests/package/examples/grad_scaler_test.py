"""PyTorch's recipe learns, and a resumed run equals an uninterrupted one."""
import zipfile

from support import Example, main, numbers


class GradScaler(Example):
    def test_it_resumes_where_it_stopped(self):
        whole = self.program("grad_scaler", "../digits.csv", 4, within="whole").splitlines()
        self.assert_better_than_chance(numbers(r"accuracy ([\d.]+)", whole[-1])[0])
        self.assertGreaterEqual(numbers(r"scale (\d+)", whole[-1])[0], 1)

        first = self.program("grad_scaler", "../digits.csv", 2, within="parts").splitlines()
        second = self.program("grad_scaler", "../digits.csv", 4, "grad_scaler.pt", within="parts").splitlines()
        self.assertEqual(first + second, whole)
        self.assertEqual(*(self.tensors(self.folder / run / "grad_scaler.pt") for run in ("whole", "parts")))

    def test_bad_arguments_are_errors(self):
        self.assert_epochs_are_checked("grad_scaler", "digits.csv")
        (self.folder / "broken.pt").write_text("no archive")
        self.assertIn("archive", self.program("grad_scaler", "digits.csv", 4, "broken.pt", code=1))

    def tensors(self, path):
        """The bytes of every tensor of an archive. The order of optimizer state in it depends on addresses."""
        with zipfile.ZipFile(path) as archive:
            found = sorted(archive.read(name) for name in archive.namelist() if "/data/" in name)
        self.assertGreater(len(found), 0)
        return found


main()
