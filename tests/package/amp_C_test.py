"""amp_C for Python on CPU tensors, called as Apex's optimizers call it, against torch.optim and formulas in float64."""

import math
import pathlib
import re
import sys
import types
import unittest
import unittest.mock

import amp_C
import apex_cpp
import torch

# torch.optim marks its methods for torch.compile; the module for that needs packages that the test environment lacks.
torch._dynamo = sys.modules["torch._dynamo"] = types.SimpleNamespace(
    disable=lambda function, *_, **__: function, graph_break=lambda: None
)

EPS = 2.0**-23  # float32: an operation is off by half of it, relative
HALF_EPS = 2.0**-10  # float16
SHAPES = [(37,), (5, 7), (0,), (1,), (3, 2, 4)]


def applier(op, flag, tensor_lists, *args):
    """Apex's multi_tensor_applier: 65,536 elements per chunk."""
    return op(2048 * 32, flag, tensor_lists, *args)


def flag():
    return torch.zeros(1, dtype=torch.int32)


def tensors(seed, scale=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * scale).to(dtype) for shape in SHAPES]


def zeros(dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in SHAPES]


def doubles(values):
    return [value.double() for value in values]


class FromTorch:
    """torch.optim in float64, from the same parameters and gradients: the reference for lower precision."""

    def __init__(self, kind, params, **options):
        self.params = [value.double().clone().requires_grad_() for value in params]
        self.optimizer = kind(self.params, **options)

    def step(self, grads):
        for param, grad in zip(self.params, grads):
            param.grad = grad.double()
        self.optimizer.step()


class Case(unittest.TestCase):
    def close(self, values, expected, atol):
        for value, truth in zip(values, expected, strict=True):
            difference = (value.double() - truth.detach()).abs().max().item() if value.numel() else 0.0
            self.assertLessEqual(difference, atol)

    def same(self, values, expected):
        self.assertTrue(all(torch.equal(value, other) for value, other in zip(values, expected, strict=True)))


class Names(Case):
    def test_are_those_of_the_header(self):
        [header] = pathlib.Path(apex_cpp.library_path).parent.glob("include/*/apex_cpp/amp_C.h")
        names = re.findall(r"inline constexpr auto& (\w+) =", header.read_text())
        stages = re.findall(r"using ::(multi_tensor_lamb_stage\d_cuda);", header.read_text())
        self.assertEqual(len(names + stages), 18)
        for name in names + stages:
            self.assertIs(getattr(amp_C, name), getattr(apex_cpp.amp_C, name))


class Optimizers(Case):
    """Ten steps. A step rounds a parameter once, and its update is off by what the moments have gathered, an operation's error a step
    and 16 more for the rest: EPS * steps * (|param| + |update| * (2 * steps + 16))."""

    STEPS = 10
    LR = 0.05

    def tolerance(self, largest_update, eps=EPS):
        return self.STEPS * (eps * 5 + EPS * largest_update * (2 * self.STEPS + 16))

    def grads(self, step, dtype=torch.float32):
        return tensors(100 + step, dtype=dtype)

    def adam(self, mode, dtype, decay=0.01):
        params, m, v = tensors(1, dtype=dtype), zeros(), zeros()
        for step in range(1, self.STEPS + 1):
            lists = [self.grads(step, dtype), params, m, v]
            applier(amp_C.multi_tensor_adam, flag(), lists, self.LR, 0.9, 0.99, 1e-8, step, mode, 1, decay)
        return params

    def expected_adam(self, kind, dtype, decay=0.01):
        truth = FromTorch(kind, tensors(1, dtype=dtype), lr=self.LR, betas=(0.9, 0.99), eps=1e-8, weight_decay=decay)
        for step in range(1, self.STEPS + 1):
            truth.step(self.grads(step, dtype))
        return truth.params

    # An update of Adam is at most about sqrt((1 - beta1)**2 / (1 - beta2)) = 1 times the rate after the first steps; 4 is ample.
    def test_adam(self):
        self.close(self.adam(0, torch.float32), self.expected_adam(torch.optim.Adam, torch.float32), self.tolerance(self.LR * 4))

    def test_adam_w(self):
        self.close(self.adam(1, torch.float32), self.expected_adam(torch.optim.AdamW, torch.float32), self.tolerance(self.LR * 4))

    def test_adam_w_of_float16_params_with_float32_moments(self):
        truth = self.expected_adam(torch.optim.AdamW, torch.float16, decay=0.1)
        self.close(self.adam(1, torch.float16, 0.1), truth, self.tolerance(self.LR * 4, HALF_EPS / 2))

    def test_capturable_adam_reads_rate_step_and_scale_from_tensors(self):
        params, m, v = tensors(1), zeros(), zeros()
        step, lr, inv_scale = torch.zeros(1, dtype=torch.int32), torch.tensor(self.LR), torch.tensor([1 / 1024])
        for number in range(1, self.STEPS + 1):
            step += 1
            scaled = [grad * 1024 for grad in self.grads(number)]
            lists = [scaled, params, m, v]
            applier(amp_C.multi_tensor_adam_capturable, flag(), lists, lr, 0.9, 0.99, 1e-8, step, 1, 1, 0.01, inv_scale)
        self.close(params, self.expected_adam(torch.optim.AdamW, torch.float32), self.tolerance(self.LR * 4))

    def test_capturable_adam_with_masters(self):
        params, m, v = tensors(1, dtype=torch.float16), zeros(), zeros()
        masters = [param.float() for param in params]
        step, lr, inv_scale = torch.zeros(1, dtype=torch.int32), torch.tensor(self.LR), torch.ones(1)
        op = amp_C.multi_tensor_adam_capturable_master
        for number in range(1, self.STEPS + 1):
            step += 1
            lists = [self.grads(number, torch.float16), params, m, v, masters]
            applier(op, flag(), lists, lr, 0.9, 0.99, 1e-8, step, 1, 1, 0.01, inv_scale)
        self.close(masters, self.expected_adam(torch.optim.AdamW, torch.float16), self.tolerance(self.LR * 4))
        self.same(params, [master.half() for master in masters])

    def test_capturable_adam_changes_nothing_where_the_flag_is_raised(self):
        lists = [tensors(2), tensors(1), zeros(), zeros()]
        before = [[value.clone() for value in values] for values in lists]
        args = (torch.tensor(0.1), 0.9, 0.99, 1e-8, torch.ones(1, dtype=torch.int32), 1, 1, 0.01, torch.tensor([0.5]))
        applier(amp_C.multi_tensor_adam_capturable, flag() + 1, lists, *args)
        for values, others in zip(lists, before):
            self.same(values, others)

    def sgd(self, params, momentum, dampening, nesterov, decay, scale=1.0):
        buffers, model = zeros(), [value.half() for value in params]
        for step in range(1, self.STEPS + 1):
            grads = [grad * scale for grad in self.grads(step)]
            lists = [grads, params, buffers, model]
            applier(amp_C.multi_tensor_sgd, flag(), lists, decay, momentum, dampening, self.LR, nesterov, step == 1, False, 1 / scale)
        return model

    # With momentum 0.9 an update is at most 10 of the largest gradients, which are below 5.
    def test_sgd(self):
        for momentum, dampening, nesterov, decay in [(0.0, 0.0, False, 0.0), (0.9, 0.1, False, 0.01), (0.9, 0.0, True, 0.01)]:
            with self.subTest(momentum=momentum, dampening=dampening, nesterov=nesterov):
                options = dict(lr=self.LR, momentum=momentum, dampening=dampening, nesterov=nesterov, weight_decay=decay)
                truth, params = FromTorch(torch.optim.SGD, tensors(1), **options), tensors(1)
                for step in range(1, self.STEPS + 1):
                    truth.step(self.grads(step))
                model = self.sgd(params, momentum, dampening, nesterov, decay, scale=512.0)
                self.close(params, truth.params, self.tolerance(self.LR * 50))
                self.same(model, [param.half() for param in params])

    def test_sgd_changes_nothing_where_the_flag_is_raised(self):
        params, buffers = tensors(1), zeros()
        args = (0.0, 0.9, 0.0, 0.1, False, True, False, 1.0)
        applier(amp_C.multi_tensor_sgd, flag() + 1, [tensors(2), params, buffers], *args)
        self.same(params, tensors(1))
        self.same(buffers, zeros())

    # An update of Adagrad is at most the rate: a gradient over the root of a sum that has its square.
    def test_adagrad(self):
        truth, params, sums = FromTorch(torch.optim.Adagrad, tensors(1), lr=self.LR, eps=1e-10, weight_decay=0.01), tensors(1), zeros()
        for step in range(1, self.STEPS + 1):
            truth.step(self.grads(step))
            applier(amp_C.multi_tensor_adagrad, flag(), [self.grads(step), params, sums], self.LR, 1e-10, 0, 0.01)
        self.close(params, truth.params, self.tolerance(self.LR))

    # The buffer of ten steps is at most ten of the largest changes: with a trust coefficient of 0.1 these are far below 1 times the rate.
    def test_lars(self):
        """The norms as Apex's class gets them, from multi_tensor_l2norm."""
        trust, eps, decay, momentum = 0.1, 1e-3, 0.01, 0.9
        params, buffers = tensors(1), zeros()
        truth, sums = doubles(params), doubles(buffers)
        for step in range(1, self.STEPS + 1):
            grads = self.grads(step)
            norms = [applier(amp_C.multi_tensor_l2norm, flag(), [values], True)[1] for values in (grads, params)]
            args = (*norms, self.LR, trust, eps, decay, momentum, 0.0, False, step == 1, False, 1.0, False)
            applier(amp_C.multi_tensor_lars, flag(), [grads, params, buffers], *args)
            for i, grad in enumerate(doubles(grads)):
                g, p = grad.norm(), truth[i].norm()
                rate = self.LR * trust * p / (g + decay * p + eps) if grad.numel() else self.LR
                sums[i] = momentum * sums[i] - rate * (grad + decay * truth[i])
                truth[i] += sums[i]
        self.close(params, truth, self.tolerance(self.LR * 10))

    # An update is a mean of gradients, each over its tensor's norm so far: about 1 times the rate, and 4 is ample.
    def test_novograd(self):
        """Mode 1: gradients over the running norm of their tensor, decay added; the mean of these, corrected, is the step."""
        beta1, beta2, eps, decay = 0.95, 0.98, 1e-8, 0.01
        params, means, norms = tensors(1), zeros(), torch.zeros(len(SHAPES))
        truth, mean, square = doubles(params), doubles(means), torch.zeros(len(SHAPES), dtype=torch.double)
        for step in range(1, self.STEPS + 1):
            grads = self.grads(step)
            args = (norms, self.LR, beta1, beta2, eps, step, 1, decay, 1, 1, 2)
            applier(amp_C.multi_tensor_novograd, flag(), [grads, params, means], *args)
            c1, c2 = 1 - beta1**step, math.sqrt(1 - beta2**step)
            for i, grad in enumerate(doubles(grads)):
                square[i] = beta2 * square[i] + (1 - beta2) * grad.square().sum()
                mean[i] = beta1 * mean[i] + (1 - beta1) * grad
                truth[i] -= self.LR * (mean[i] / c1 / (square[i].sqrt() / c2 + eps) + decay * truth[i])
        self.close(params, truth, self.tolerance(self.LR * 4))

    def expected_lamb(self, lr, decay, max_norm):
        params, m, v = doubles(tensors(1)), doubles(zeros()), doubles(zeros())
        for step in range(1, self.STEPS + 1):
            grads = doubles(self.grads(step))
            norm = math.sqrt(sum(grad.square().sum().item() for grad in grads))
            for i, grad in enumerate(grads):
                grad = grad / max(norm / max_norm, 1.0)
                m[i] = 0.9 * m[i] + 0.1 * grad
                v[i] = 0.99 * v[i] + 0.01 * grad.square()
                update = m[i] / (1 - 0.9**step) / ((v[i] / (1 - 0.99**step)).sqrt() + 1e-6) + decay * params[i]
                p, u = params[i].norm(), update.norm()
                params[i] -= lr * (p / u if p > 0 and u > 0 else 1.0) * update
        return params

    # The trust ratio makes an update as long as the tensor: elements of it are below 20 here, and in the next two tests.
    def test_lamb_clips_by_the_norm_that_l2norm_gives(self):
        params, m, v = tensors(1), zeros(), zeros()
        for step in range(1, self.STEPS + 1):
            grads = self.grads(step)
            norm = applier(amp_C.multi_tensor_l2norm, flag(), [grads], False)[0]
            args = (self.LR, 0.9, 0.99, 1e-6, step, 1, 0.01, 1, 1, norm, 1.0, False)
            applier(amp_C.multi_tensor_lamb, flag(), [grads, params, m, v], *args)
        self.close(params, self.expected_lamb(self.LR, 0.01, 1.0), self.tolerance(self.LR * 20))

    def test_lamb_mp_reads_its_arguments_from_tensors_and_writes_model_params(self):
        params, model, m, v = tensors(1), [value.half() for value in tensors(1)], zeros(), zeros()
        for number in range(1, self.STEPS + 1):
            grads = [grad * 64 for grad in self.grads(number)]
            norm = applier(amp_C.multi_tensor_l2norm_mp, flag(), [grads], False)[0]
            step = torch.tensor([number], dtype=torch.int32)
            args = (torch.tensor([self.LR]), 0.9, 0.99, 1e-6, step, 1, 0.01, 1, 1, norm, torch.tensor([64.0]), False)
            lists = [grads, params, m, v, model]
            applier(amp_C.multi_tensor_lamb_mp, flag(), lists, *args, torch.zeros(1), torch.tensor([1 / 64]))
        self.close(params, self.expected_lamb(self.LR, 0.01, 1.0), self.tolerance(self.LR * 20))
        self.same(model, [param.half() for param in params])

    def test_the_two_stages_of_lamb(self):
        params, m, v, updates = tensors(1), zeros(), zeros(), zeros()
        decay = torch.full((len(SHAPES),), 0.01)
        for step in range(self.STEPS):
            grads = self.grads(step + 1)
            norm = applier(amp_C.multi_tensor_l2norm, flag(), [grads], False)[0]
            lists = [grads, params, m, v, updates]
            applier(amp_C.multi_tensor_lamb_stage1_cuda, flag(), lists, decay, step, 0.9, 0.99, 1e-6, norm, 1.0)
            param_norms = applier(amp_C.multi_tensor_l2norm, flag(), [params], True)[1]
            update_norms = applier(amp_C.multi_tensor_l2norm, flag(), [updates], True)[1]
            norms = (param_norms, update_norms)
            applier(amp_C.multi_tensor_lamb_stage2_cuda, flag(), [params, updates], *norms, self.LR, 0.01, False)
        self.close(params, self.expected_lamb(self.LR, 0.01, 1.0), self.tolerance(self.LR * 20))


class LossScale(Case):
    def test_scale_unscales_and_reports_what_is_not_finite(self):
        grads, masters, found = [grad.half() for grad in tensors(1, 100)], zeros(), flag()
        applier(amp_C.multi_tensor_scale, found, [grads, masters], 1 / 128)
        self.same(masters, [grad.float() / 128 for grad in grads])
        self.assertEqual(found.item(), 0)
        grads[1][2, 3] = math.inf
        applier(amp_C.multi_tensor_scale, found, [grads, masters], 1 / 128)
        self.assertEqual(found.item(), 1)

    def test_axpby_looks_at_the_argument_that_it_is_told_to(self):
        x, y, out = tensors(1), tensors(2), zeros()
        applier(amp_C.multi_tensor_axpby, flag(), [x, y, out], 2.0, -0.5, -1)
        self.close(out, [2 * a - b / 2 for a, b in zip(doubles(x), doubles(y))], 15 * EPS)  # elements below 15
        x[0][3] = math.nan
        for argument, expected in [(-1, 1), (0, 1), (1, 0)]:
            found = flag()
            applier(amp_C.multi_tensor_axpby, found, [x, y, out], 1.0, 1.0, argument)
            self.assertEqual(found.item(), expected)

    def norms(self, values, factor=1.0):
        each = [value.norm().item() * factor for value in doubles(values)]
        return math.sqrt(sum(norm**2 for norm in each)), each

    # A sum of 100 squares and its root, in float32: far below 64 roundings.
    def check_norms(self, result, expected):
        total, each = expected
        self.assertAlmostEqual(result[0].item(), total, delta=total * 64 * EPS)
        for norm, truth in zip(result[1].tolist(), each, strict=True):
            self.assertAlmostEqual(norm, truth, delta=truth * 64 * EPS)

    def test_norms(self):
        values, out = tensors(1), zeros()
        self.check_norms(applier(amp_C.multi_tensor_l2norm, flag(), [values], True), self.norms(values))
        self.check_norms(applier(amp_C.multi_tensor_l2norm_mp, flag(), [values], True), self.norms(values))
        self.check_norms(applier(amp_C.multi_tensor_l2norm_scale, flag(), [values, out], 4.0, True), self.norms(values))
        self.same(out, [value * 4 for value in values])
        result = applier(amp_C.multi_tensor_unscale_l2norm, flag(), [values], torch.tensor([0.25]), True)
        self.check_norms(result, self.norms(values, 0.25))
        for per_tensor in (None, False):
            self.assertEqual(applier(amp_C.multi_tensor_l2norm, flag(), [values], per_tensor)[1].numel(), 0)

    def test_hysteresis_takes_two_overflows_to_halve_the_scale(self):
        scale, growth, hysteresis = torch.tensor([8.0]), torch.tensor([1], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
        seen = []
        for overflow in (1.0, 1.0, 0.0, 0.0):
            found = torch.tensor([overflow])
            result = amp_C.update_scale_hysteresis(scale, growth, hysteresis, found, 4.0, 0.5, 2, 2)
            seen.append((result.item(), growth.item(), hysteresis.item()))
        self.assertEqual(seen, [(8.0, 0, 1), (4.0, 0, 0), (4.0, 1, 2), (16.0, 0, 2)])


class Errors(Case):
    def test_are_raised_before_anything_is_changed(self):
        params = tensors(1)
        adam = (0.1, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)
        lists = [tensors(2), params, zeros(), zeros()]
        for error, pattern, call in [
            (ValueError, "chunk_size is 0", lambda: amp_C.multi_tensor_adam(0, flag(), lists, *adam)),
            (ValueError, "does not fit", lambda: amp_C.multi_tensor_adam(2**40, flag(), lists, *adam)),
            (ValueError, "does not fit", lambda: amp_C.multi_tensor_adam(-(2**31) - 1, flag(), lists, *adam)),
            (ValueError, "mode is 5", lambda: applier(amp_C.multi_tensor_adam, flag(), lists, 0.1, 0.9, 0.99, 1e-8, 1, 5, 1, 0.0)),
            (RuntimeError, "got 3 tensor lists, expected 4", lambda: applier(amp_C.multi_tensor_adam, flag(), lists[:3], *adam)),
            (RuntimeError, "missing value for argument", lambda: applier(amp_C.multi_tensor_adam, flag(), lists, 0.1)),
        ]:
            with self.subTest(pattern), self.assertRaisesRegex(error, pattern):
                call()
        self.same(params, tensors(1))


@unittest.skipIf(torch.cuda.is_available(), "this machine has a GPU: without_gpu changes nothing")
class WithoutGpu(Case):
    def test_what_asks_for_cuda_gets_the_cpu(self):
        with apex_cpp.without_gpu():
            made = [torch.tensor([0], dtype=torch.int, device="cuda"), torch.zeros(1, device=torch.device("cuda", 0))]
            made += [torch.cuda.IntTensor([0]), torch.cuda.FloatTensor(3)]
            on_cpu = torch.ones(2, device="cpu")
        self.assertEqual([value.device.type for value in made + [on_cpu]], ["cpu"] * 5)
        self.assertEqual([value.dtype for value in made], [torch.int32, torch.float32, torch.int32, torch.float32])

    def test_the_block_of_the_page_runs(self):
        page = (pathlib.Path(__file__).parents[2] / "apex_cpp/README.md").read_text()
        (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
        apex, optimizers = types.ModuleType("apex"), types.ModuleType("apex.optimizers")
        apex.optimizers = optimizers
        optimizers.FusedAdam = lambda params: torch.zeros(len(list(params)), device="cuda")
        names = {"model": torch.nn.Linear(2, 2)}
        with unittest.mock.patch.dict(sys.modules, {"apex": apex, "apex.optimizers": optimizers}):
            exec(block, names)
        self.assertEqual(names["optimizer"].device.type, "cpu")

    def test_ends_with_the_context(self):
        before = torch.cuda.IntTensor
        with self.assertRaises(KeyError), apex_cpp.without_gpu():
            raise KeyError
        self.assertIs(torch.cuda.IntTensor, before)
        with self.assertRaises((RuntimeError, AssertionError)):
            torch.zeros(1, device="cuda")


if __name__ == "__main__":
    unittest.main()
