"""Names that ROCm's Apex has and NVIDIA's has not, and a class that neither has."""
import unittest

from support import ToolTest


class Rocm(ToolTest):
    def test_lars_is_provided(self):
        source = """
            import amp_C
            from apex.optimizers import FusedLARS
            from apex.optimizers.fused_lars import FusedLARS as Lars
            lars = FusedLARS(p, lr=0.1, momentum=0.9, trust_coefficient=0.01, nesterov=True)
            lars.step()
            lars.get_momentums(p)
            Lars(p, lr=0.1, dampening=0.1, wd_after_momentum=True)
            amp_C.multi_tensor_lars(65536, flag, lists, grad_norms, param_norms, 0.1)
            Lars(p, lr=0.1, max_grad_norm=1)
        """
        expected = [(4, "APX215"), (5, "APX215"), (6, "APX217"), (7, "APX215"), (7, "APX216"), (7, "APX216"), (8, "APX528")]
        self.assertEqual(self.rules(source), [*expected, (9, "APX215"), (9, "APX000")])

    def test_the_function_is_unchanged_in_cpp_unless_its_arguments_differ(self):
        numbers = ", ".join(["0.f"] * 6)
        call = f"multi_tensor_lars_cuda(65536, flag, lists, g, p, {numbers}, false, true, false, 1.f, false);\n"
        other = "multi_tensor_lars_cuda(65536, flag, lists, g, p);\n"
        self.assertEqual(self.rules(call + other, "step.cpp"), [(1, "APX528"), (2, "APX526")])

    def test_lion_is_provided(self):
        self.assertEqual(self.rules("from apex.optimizers import FusedLion\nFusedLion(p, lr=1e-4, betas=(0.9, 0.99)).step()\n"), [(2, "APX218")] * 2)

    def test_the_fused_swiglu_is_not_provided(self):
        source = "import fused_bias_swiglu\ny = fused_bias_swiglu.forward(x, bias)\ng = fused_bias_swiglu.backward(dy, x, bias)\n"
        self.write("layer.py", source)
        self.write("layer.cu", "auto f = &fused_bias_swiglu_forward;\nauto b = &fused_bias_swiglu_backward;\n")
        found = self.check(code=1)["findings"]
        self.assertEqual([(each["rule"], each["verdict"]) for each in found], [("APX711", "none")] * 4)
        self.assertIn("torch::silu(halves[0]) * halves[1]", found[0]["snippet"])


if __name__ == "__main__":
    unittest.main()
