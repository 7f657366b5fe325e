"""Runs tools/port_check on sources of every kind: what it finds in them, its reports, its baseline and its exit codes."""
import json
import os
import re
import unittest

from support import ToolTest, run


class Python(ToolTest):
    def test_names_are_followed_through_every_form_of_import(self):
        source = """
            import apex
            import apex.amp.frontend
            import apex.parallel as par
            from apex import amp as A
            from apex.amp import scale_loss as scaled
            from apex.optimizers import *
            from apex.parallel.distributed import DistributedDataParallel as DDP
            apex.amp.initialize(m, o)
            apex.amp.frontend.initialize(m, o)
            par.Reducer(m)
            A.master_params(o)
            scaled(loss, o)
            FusedAdam(p)
            DDP(m)
            alias = A.state_dict
            alias()
        """
        expected = [(8, "APX001"), (9, "APX001"), (10, "APX406"), (11, "APX020"), (12, "APX013"), (13, "APX202"), (14, "APX401")]
        self.assertEqual(self.rules(source), [*expected, (15, "APX018"), (16, "APX018")])

    def test_imports_inside_of_functions_conditions_and_calls(self):
        source = """
            import importlib
            def train():
                try:
                    from apex import amp
                except ImportError:
                    amp = None
                if amp is not None:
                    amp.initialize(m, o)
            amp_C = importlib.import_module("amp_C")
            amp_C.multi_tensor_scale(65536, flag, lists, 1.0)
            __import__("apex").amp.state_dict()
        """
        self.assertEqual(self.rules(source), [(8, "APX001"), (10, "APX503"), (11, "APX018")])

    def test_modules_that_a_test_skips_without(self):
        source = """
            import pytest
            def test_scale():
                amp_C = pytest.importorskip("amp_C")
                applier = pytest.importorskip("apex.multi_tensor_apply").multi_tensor_applier
                applier(amp_C.multi_tensor_scale, flag, lists, 1.0)
                pytest.importorskip("numpy").array(1)
        """
        self.assertEqual(self.rules(source), [(4, "APX502"), (5, "APX502"), (5, "APX503")])

    def test_a_global_import_is_seen_by_other_functions(self):
        source = """
            def main():
                global amp
                from apex import amp
            def train():
                amp.state_dict()
        """
        self.assertEqual(self.rules(source), [(5, "APX018")])

    def test_an_import_that_nothing_uses_is_reported_itself(self):
        self.write("reexport.py", "from apex.optimizers import FusedAdam, FusedSGD\nFusedSGD(p)\n")
        kinds = [(found["line"], found["rule"], found["kind"]) for found in self.check()["findings"]]
        self.assertEqual(kinds, [(1, "APX202", "import"), (2, "APX201", "call")])

    def test_arguments_have_rules_of_their_own(self):
        source = """
            from apex import amp
            model, optimizer = amp.initialize(model, optimizer, opt_level="O1",
                                              loss_scale="dynamic", **more)
            with amp.scale_loss(loss, [a, b], loss_id=1, model=net):
                pass
        """
        found = self.rules(source)
        self.assertEqual(found, [(2, "APX001"), (2, "APX002"), (3, "APX008"), (4, "APX013"), (4, "APX014"), (4, "APX017")])

    def test_an_argument_or_name_that_apex_does_not_have_is_unclassified(self):
        found = self.findings("from apex import amp\namp.initialize(m, o, precision=16)\namp.autoscale(o)\n")
        self.assertEqual(
            found, [(2, "APX001", "apex.amp.initialize"), (2, "APX000", "apex.amp.initialize(precision)"), (3, "APX000", "apex.amp.autoscale")]
        )

    def test_methods_of_objects_of_apex(self):
        source = """
            from apex import amp
            from apex.fp16_utils import FP16_Optimizer
            from apex.optimizers import FusedAdam
            class Trainer:
                def __init__(self):
                    self.optimizer = FP16_Optimizer(sgd, dynamic_loss_scale=True)
                def train(self, loss):
                    self.optimizer.backward(loss)
                    self.optimizer.clip_master_grads(1)
                    self.optimizer.param_groups
                    self.optimizer.share_memory()
            def make():
                return FP16_Optimizer(sgd)
            made = make()
            made.loss_scale = 2
            FusedAdam(p).step()
            class Own(FusedAdam):
                pass
            own = Own(p, anything=1)
            own.zero_grad()
            amp._amp_state.loss_scalers[0].loss_scale()
            handle = amp.init()
            with handle.scale_loss(loss, sgd):
                pass
        """
        expected = [(6, "APX112"), (8, "APX113"), (9, "APX115"), (10, "APX112"), (13, "APX112"), (15, "APX118"), (16, "APX202"), (16, "APX202")]
        expected += [(17, "APX202"), (20, "APX202"), (21, "APX041"), (21, "APX029"), (22, "APX028"), (23, "APX028")]
        self.assertEqual(self.rules(source), expected)

    def test_an_object_that_has_the_name_of_a_module(self):
        source = "from apex.amp import _amp_state\n_amp_state.handle._deactivate()\nfrom apex.amp.handle import scale_loss\nscale_loss(l, o)\n"
        self.assertEqual(self.findings(source), [(2, "APX048", "apex.amp.AmpHandle._deactivate"), (4, "APX013", "apex.amp.scale_loss")])
        self.assertEqual(self.rules("from apex import amp\namp._amp_state.handle._clear_cache()\namp._amp_state.handle.is_active()\n"), [(2, "APX049"), (3, "APX028")])

    def test_the_function_of_a_layer_is_not_the_layer(self):
        source = "from apex.contrib.layer_norm.layer_norm import FastLayerNorm, FastLayerNormFN\nFastLayerNormFN.apply(x, w, b, eps)\nFastLayerNorm(4)\n"
        self.assertEqual(self.rules(source), [(2, "APX631"), (3, "APX603")])

    def test_a_class_that_derives_from_one_of_apex_has_its_members(self):
        source = """
            from apex.optimizers import FusedAdam
            class Own(FusedAdam):
                def __init__(self, params):
                    super().__init__(params)
                    self.scale = 1
                def zero_grad(self): pass
                def step(self):
                    self.zero_grad()
                    apply(self.multi_tensor_adam, self._dummy_overflow_buf, self.adam_w_mode, self.scale, self.param_groups)
                    return super().step()
            class Other(Plain):
                def step(self):
                    self.multi_tensor_adam
                    super().step()
        """
        expected = [(2, "APX202"), (9, "APX512"), (9, "APX212"), (9, "APX213"), (10, "APX202")]
        self.assertEqual(self.rules(source), expected)

    def test_arguments_of_methods(self):
        source = "from apex.optimizers import FusedAdam\nadam = FusedAdam(p)\nadam.step(grad_scaler=scaler)\nadam.step(closure=f)\n"
        self.assertEqual(self.rules(source), [(2, "APX202"), (3, "APX202"), (3, "APX211"), (4, "APX202")])

    def test_telling_attributes_of_objects_that_come_from_elsewhere(self):
        source = """
            from apex import amp
            def step(optimizer):
                optimizer.clip_master_grads(1)
                return optimizer._amp_stash.fp32_from_fp16_groups
        """
        self.assertEqual(self.rules(source), [(3, "APX115"), (4, "APX037")])

    def test_telling_attributes_of_a_class_that_is_another_ones(self):
        use = "FusedAdam(p)\noptimizer.clip_master_grads(1)\n"
        others = "from megatron.fp16 import FP16_Optimizer\nfrom apex.optimizers import FusedAdam\n"
        self.assertEqual(self.rules(others + use), [(3, "APX202")])
        own = "from apex.optimizers import FusedAdam\nclass FP16_Optimizer: pass\n"
        self.assertEqual(self.rules(own + use), [(3, "APX202")])
        both = "try:\n    from apex.fp16_utils import FP16_Optimizer\nexcept ImportError:\n    from fp16 import FP16_Optimizer\n"
        self.assertEqual(self.rules(both + "FP16_Optimizer(o)\n" + use)[-1], (7, "APX115"))

    def test_names_that_stand_for_something_else_are_not_followed(self):
        source = """
            from apex import amp
            from apex.optimizers import FusedAdam
            def f(amp): amp.energy(3)
            g = lambda amp: amp.energy(3)
            def h(*, handle=amp): handle.state_dict()
            opt = FusedAdam(p)
            opt.step()
            opt = make_other()
            opt.step()
            opt = FusedAdam(p)
            for opt in others:
                opt.step()
            a, (opt, *rest) = make_two()
            opt.step()
            for opt, other in (FusedAdam(p), FusedAdam(q)):
                opt.step()
        """
        expected = [(5, "APX018"), (6, "APX202"), (7, "APX202"), (10, "APX202"), (15, "APX202"), (15, "APX202")]
        self.assertEqual(self.rules(source), expected)

    def test_what_may_still_stand_for_apex_is_followed(self):
        source = """
            from apex.optimizers import FusedAdam
            opt = FusedAdam(p)
            if plain:
                opt = make_other()
                opt.step()
            opt.step()
            opt = opt.to(device)
            opt.step()
            opt = None
            opt.step()
            class Holder:
                opt = make_other()
            opt.step()
            def train(fused):
                if fused:
                    own = FusedAdam(p)
                else:
                    own = make_other()
                own.step()
        """
        lines = [line for line, _, name in self.findings(source) if name == "apex.optimizers.FusedAdam.step"]
        self.assertEqual(lines, [6, 8, 10, 13, 19])

    def test_names_with_a_fallback_may_have_arguments_of_the_fallback(self):
        source = """
            try:
                from apex.parallel import DistributedDataParallel as DDP
                from apex.normalization import FusedLayerNorm as LayerNorm
                from apex.amp import state_dict
            except ImportError:
                from torch.nn.parallel import DistributedDataParallel as DDP
                class LayerNorm(nn.Module):
                    def initialize(self): pass
                def state_dict(everything): pass
            from apex.amp import initialize
            DDP(m, device_ids=[0], delay_allreduce=True)
            LayerNorm(5, bias=False)
            state_dict(everything=True)
            initialize(m, o, precision=16)
        """
        self.assertEqual(self.rules(source), [(11, "APX401"), (12, "APX301"), (13, "APX018"), (14, "APX001"), (14, "APX000")])

    def test_assigning_a_member_has_a_rule_of_its_own(self):
        source = """
            from apex import amp
            scaler = amp._amp_state.loss_scalers[0]
            scaler._loss_scale = 2 ** 20
            scaler._loss_scale *= 2
            old, scaler._unskipped = scaler._unskipped, 0
            print(scaler.loss_scale(), scaler._loss_scale, scaler.dynamic)
            amp._amp_state.loss_scalers[1]._loss_scale = 128
        """
        expected = [(2, "APX029"), (3, "APX042"), (4, "APX042"), (5, "APX042"), (5, "APX041"), (6, "APX041"), (6, "APX041"), (6, "APX041")]
        self.assertEqual(self.rules(source), [*expected, (7, "APX042"), (7, "APX029")])
        verdicts = {found["rule"]: found["verdict"] for found in self.check(code=0)["findings"]}
        self.assertEqual((verdicts["APX041"], verdicts["APX042"]), ("exact", "renamed"))

    def test_members_of_a_loss_scaler(self):
        source = """
            from apex import amp
            from apex.amp.scaler import LossScaler
            class Trainer:
                def __init__(self):
                    self.scaler = amp._amp_state.loss_scalers[0]
                    self.scaler._scale_seq_len = 128
                    self.scaler._min_loss_scale, self.scaler._max_loss_scale = 1, amp._amp_state.max_loss_scale
                def step(self):
                    self.scaler._overflow_buf = flag
                    self.scaler.update_scale()
                    return self.scaler._scale_seq_len if self.scaler._has_overflow else LossScaler("dynamic").has_fused_kernel
        """
        expected = [(5, "APX029"), (6, "APX043"), (7, "APX044"), (7, "APX044"), (7, "APX044"), (9, "APX046"), (10, "APX031")]
        self.assertEqual(self.rules(source), [*expected, (11, "APX043"), (11, "APX045"), (11, "APX031"), (11, "APX031")])

    def test_other_members_of_a_loss_scaler_are_unclassified(self):
        source = """
            from apex import amp
            scaler = amp._amp_state.loss_scalers[0]
            scaler._overfloat_buf = flag
            scaler.grow()
            scaler.__dict__
            class Holder:
                def __init__(self):
                    self.scaler = None
                    self.scaler = amp._amp_state.loss_scalers[0]
                    self.scaler.shrink()
        """
        expected = [(2, "APX029", "apex.amp.loss_scalers"), (3, "APX000", "apex.amp.LossScaler._overfloat_buf")]
        expected += [(4, "APX000", "apex.amp.LossScaler.grow"), (9, "APX029", "apex.amp.loss_scalers")]
        self.assertEqual(self.findings(source), [*expected, (10, "APX000", "apex.amp.LossScaler.shrink")])

    def test_what_may_not_be_a_loss_scaler_may_have_other_members(self):
        source = """
            from apex import amp
            from apex.amp.scaler import LossScaler
            class Own(LossScaler):
                def grow(self): self.steps = self.steps + self._unskipped
            Own(1).grow()
            if torch_amp:
                scaler = GradScaler()
            else:
                scaler = amp._amp_state.loss_scalers[0]
            scaler.scale(loss).backward()
            either = amp._amp_state.loss_scalers[0] if apex else GradScaler()
            either.scale(loss)
            class Trainer:
                def __init__(self):
                    self.scaler = GradScaler()
                    if apex:
                        self.scaler = amp._amp_state.loss_scalers[0]
                def step(self):
                    self.scaler.unscale_(self.scaler._loss_scale)
            def make():
                if apex:
                    return amp._amp_state.loss_scalers[0]
                return GradScaler()
            make().unscale_(opt)
        """
        self.assertEqual([rule for _, rule in self.rules(source) if rule != "APX029"], ["APX031", "APX041", "APX041"])
        python_2 = 'from apex import amp\nprint "plain"\nif apex:\n    s = amp._amp_state.loss_scalers[0]\nelse:\n    s = other()\ns.scale(loss)\n'
        self.assertEqual(self.rules(python_2), [(4, "APX029")])

    def test_elements_of_lists_of_apex(self):
        source = """
            from apex import amp
            for scaler in amp._amp_state.loss_scalers:
                scaler._loss_scale = 1024
            for number, scaler in enumerate(amp._amp_state.loss_scalers):
                print(number.real, scaler._has_overflow)
            scales = [s.loss_scale() for s in amp._amp_state.loss_scalers]
            by_number = {i: s._unskipped for i, s in enumerate(amp._amp_state.loss_scalers) if s.dynamic}
            s.loss_scale()
        """
        expected = [(2, "APX029"), (3, "APX042"), (4, "APX029"), (5, "APX045"), (6, "APX041"), (6, "APX029")]
        self.assertEqual(self.rules(source), [*expected, (7, "APX041"), (7, "APX029"), (7, "APX041")])
        hidden = "from apex.optimizers import FusedAdam\nopt = FusedAdam(p)\n[opt.step() for opt in others]\n[opt.step() for other in others]\n"
        self.assertEqual(self.rules(hidden), [(2, "APX202"), (4, "APX202")])

    def test_masters_before_the_first_step(self):
        source = """
            from apex import amp
            def resume(optimizer):
                optimizer._lazy_init_maybe_master_weights()
                optimizer._amp_stash.lazy_init_called = True
                optimizer._master_params_to_model_params()
        """
        self.assertEqual(self.rules(source), [(3, "APX047"), (4, "APX037"), (5, "APX036")])

    def test_members_that_apex_does_not_have_are_unclassified(self):
        source = """
            import apex
            apex.optimizers.FusedAdam.no_such_thing
            apex.amp.initialize.no_such()
            apex.optimizers.FusedAdam.step(adam)
            apex.amp._amp_state.opt_properties.opt_level
            apex.parallel.ReduceOp.SUM
            apex.optimizers.FusedAdam.__doc__
        """
        expected = [(2, "APX000"), (3, "APX000"), (4, "APX202"), (5, "APX030"), (6, "APX411"), (7, "APX202")]
        self.assertEqual(self.rules(source), expected)

    def test_long_chains_of_calls_end(self):
        chain = "".join(f".m{link}(x)" for link in range(200))
        branches = "".join(f"elif a == {branch}:\n    a = {branch}\n" for branch in range(1000))
        source = f"import apex\nframe = df{chain}\nif a:\n    pass\n{branches}apex.amp.state_dict()\n"
        self.assertEqual(self.rules(source), [(source.count("\n"), "APX018")])

    def test_decorators_base_classes_and_strings(self):
        source = '''
            """apex.amp.initialize in a docstring is no use."""
            from apex import amp
            import apex.normalization
            # amp.initialize(m, o)
            @amp.float_function
            def loss(x): return x
            class Norm(apex.normalization.FusedLayerNorm): pass
            registry = {"adam": "apex.optimizers.FusedAdam", "note": "see apex.amp.initialize for more"}
        '''
        self.assertEqual(self.rules(source), [(5, "APX023"), (7, "APX301"), (8, "APX202")])

    def test_flags_count_where_the_file_uses_apex(self):
        flags = 'parser.add_argument("--opt-level")\nparser.add_argument("-l", "--loss-scale")\nparser.add_argument("--lr")\n'
        self.assertEqual(self.rules(flags, "plain.py"), [])
        self.assertEqual(self.rules("from apex import amp\n" + flags, "plain.py"), [(2, "APX038"), (3, "APX039")])

    def test_what_others_call_amp_is_not_reported(self):
        source = """
            from torch.cuda import amp
            scaler = amp.GradScaler()
            with amp.autocast(): pass
            optimizer.step()
        """
        self.assertEqual(self.rules(source), [])
        both = "try:\n    from apex import amp\nexcept ImportError:\n    from torch.cuda import amp\namp.GradScaler()\namp.initialize(m, o)\n"
        self.assertEqual(self.rules(both), [(6, "APX001")])

    def test_a_file_of_python_2_is_read_statement_by_statement(self):
        source = """
            import apex
            from apex import amp
            class Trainer:
                def train(self):
                    print "scale", self.lr
                    try:
                        with amp.scale_loss(loss, self.opt,
                                            delay_unscale=True) as scaled:
                            scaled.backward()
                    except RuntimeError, error:
                        print amp.state_dict(), error
                    else:
                        return amp.master_params(self.opt)
        """
        found = self.rules(source)
        self.assertEqual(found, [(7, "APX013"), (8, "APX015"), (11, "APX018"), (13, "APX020")])
        self.assertRegex(self.check()["notes"][0], r"train\.py: line 5 is not Python 3; read statement by statement")

    def test_blocks_of_python_2_may_be_branches(self):
        source = """
            from apex.optimizers import FusedAdam
            print "plain"
            if fused:
                opt = FusedAdam(p)
            else:
                opt = make_other()
            opt.step()
        """
        self.assertEqual(self.rules(source), [(4, "APX202"), (7, "APX202")])

    def test_what_no_python_parses_does_not_stop_the_tool(self):
        self.write("broken.py", "from apex import amp\n((((\namp.initialize(m, o)\n")
        (self.folder / "latin.py").write_bytes(b"# caf\xe9\nfrom apex import amp\namp.state_dict()\n")
        (self.folder / "marked.py").write_bytes(b"\xef\xbb\xbfimport apex\napex.amp.state_dict()\n")
        self.write("deep.py", "x = " + " + ".join(["'a'"] * 3000) + "\nimport apex\napex.amp.state_dict()\n")
        (self.folder / "zero.py").write_bytes(b"import apex\0\n")
        found = [(each["file"], each["line"], each["rule"]) for each in self.check(code=0)["findings"]]
        self.assertEqual(found, [("broken.py", 3, "APX001"), ("deep.py", 3, "APX018"), ("latin.py", 3, "APX018"), ("marked.py", 2, "APX018")])


    def test_lines_and_columns_are_those_of_an_editor(self):
        (self.folder / "lines.py").write_bytes("import apex\r\n\f\r\nx = 'ü\u2028', apex.amp.state_dict()\r\n".encode())
        (self.folder / "lines.cu").write_bytes("// \f\u2028\r\nauto x = f('ü', multi_tensor_scale_cuda);\r\n".encode())
        places = [(found["file"], found["line"], found["column"], found["text"]) for found in self.check()["findings"]]
        cuda = ("lines.cu", 2, 17, "auto x = f('ü', multi_tensor_scale_cuda);")
        self.assertEqual(places, [cuda, ("lines.py", 3, 11, "x = 'ü\u2028', apex.amp.state_dict()")])

    def test_columns_in_macros_are_those_of_the_file(self):
        lines = ["#define CALL(x)      multi_tensor_scale_cuda(x)", "#define MORE(x) f(x); \\", "  multi_tensor_adam_cuda(x)"]
        self.write("macros.cu", "\n".join(lines) + "\n")
        places = [(found["line"], found["column"]) for found in self.check()["findings"]]
        self.assertEqual(places, [(1, lines[0].index("multi") + 1), (3, 3)])


class Cpp(ToolTest):
    def test_functions_templates_macros_and_headers(self):
        source = """
            #include <torch/extension.h>
            #include "csrc/multi_tensor_apply.cuh"
            #include "type_shim.h"
            #define APPLY(depth, ...) multi_tensor_apply<depth>(__VA_ARGS__)
            template <typename T>
            struct Functor {
              __device__ void operator()(int chunk, volatile int* flag, TensorListMetadata<2>& tl) {}
            };
            void scale(at::Tensor t) {
              DISPATCH_FLOAT_AND_HALF(t.scalar_type(), 0, "scale", multi_tensor_apply<2>(512, 1, t, lists, Functor<scalar_t_0>());)
              kernel<<<1, 2>>>(t.data_ptr<float>());
              apex::multi_tensor_scale_cuda(1, t, lists, 1.f);
            }
            PYBIND11_MODULE(m, module) { module.def("scale", &multi_tensor_adam_cuda); }
        """
        expected = [(2, "APX520"), (3, "APX522"), (4, "APX520"), (7, "APX520"), (10, "APX522"), (10, "APX520"), (12, "APX503"), (14, "APX512")]
        self.assertEqual(self.rules(source, "ops.cu"), expected)
        kinds = {(found["line"], found["name"]): found["kind"] for found in self.check()["findings"]}
        self.assertEqual(kinds[12, "multi_tensor_scale_cuda"], "call")
        self.assertEqual(kinds[14, "multi_tensor_adam_cuda"], "reference")
        self.assertEqual(kinds[2, "csrc/multi_tensor_apply.cuh"], "include")

    def test_comments_and_strings_are_no_uses(self):
        source = """
            // multi_tensor_scale_cuda(1);
            /* multi_tensor_sgd_cuda */
            const char* name = "multi_tensor_adam_cuda";
            const char* raw = R"(multi_tensor_lamb_cuda)";
        """
        self.assertEqual(self.rules(source, "ops.cpp"), [])

    def test_names_that_other_code_has_too_count_only_beside_those_of_apex(self):
        own = '#include "compat.h"\nauto p = t.DATA_PTR<float>();\nvoid mlp_forward();\n'
        self.assertEqual(self.rules(own, "own.cpp"), [])
        self.assertEqual(self.rules(own + '#include "type_shim.h"\n', "own.cpp"), [(1, "APX524"), (3, "APX710"), (4, "APX522")])
        of_pytorch = "TensorListMetadata<2> tl;\nauto k = multi_tensor_apply_kernel<int>;\nint n = depth_to_max_tensors[1];\nmulti_tensor_apply<2>(l, f);\n"
        self.assertEqual(self.rules("#include <ATen/native/cuda/MultiTensorApply.cuh>\n" + of_pytorch, "own.cpp"), [])
        found = self.rules('#include "multi_tensor_apply.cuh"\n' + of_pytorch, "own.cpp")
        self.assertEqual(found, [(1, "APX520"), (2, "APX520"), (3, "APX520"), (4, "APX521"), (5, "APX520")])

    def test_a_function_with_other_arguments_is_another(self):
        six = "1, flag, lists, true, found_inf, inv_scale"
        source = f"""
            std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_cuda(int, at::Tensor, Lists, at::optional<bool> per_tensor);
            void multi_tensor_lamb_cuda(int chunk_size, at::Tensor noop_flag, Lists lists, const float global_grad_norm = 1);
            PYBIND11_MODULE(m, module) {{ module.def("lamb", &multi_tensor_lamb_cuda, "LAMB"); }}
            auto a = multi_tensor_l2norm_cuda(1, flag, /* both, of them */ lists, true);
            auto b = multi_tensor_l2norm_cuda({six});
            auto c = ::apex::multi_tensor_l2norm_cuda({six});
            auto d = multi_tensor_l2norm_cuda(1, rest...);
            #define NORM(...) multi_tensor_l2norm_cuda(__VA_ARGS__)
            using ::multi_tensor_l2norm_cuda;
        """
        expected = [(1, "APX506"), (2, "APX526"), (3, "APX526"), (4, "APX506"), (5, "APX526"), (6, "APX526")]
        self.assertEqual(self.rules(source, "ops.cpp"), [*expected, (7, "APX506"), (8, "APX506"), (9, "APX506")])

    def test_namespaces(self):
        source = """
            namespace multihead_attn { namespace fused_softmax { namespace scaled_softmax { Tensor fwd(Tensor self); } } }
            namespace multihead_attn { namespace self { namespace cublas_gemmex { Tensor fwd(Tensor self); } } }
            namespace apex::contrib::peer_memory { void zero(); }
            namespace mine { namespace self { int zero; } }
            auto a = apex::contrib::peer_memory::blob_view<int>(address);
            auto b = &multihead_attn::self::cublas_gemmex::fwd;
            namespace multihead_attn { auto c = fused_softmax::scaled_softmax::fwd(self); }
            using namespace apex::contrib::nccl_p2p;
            int fused_rope = apex::contrib::xentropy::zero + self::zero;
            void dropout() { apex_fused_dropout_cuda<at::Half, float, uint32_t>(inputs, outputs, mask, elements, 0.9f); }
        """
        found = [(1, "APX706", "multihead_attn::fused_softmax::scaled_softmax"), (2, "APX617", "multihead_attn::self")]
        found += [(3, "APX624", "apex::contrib::peer_memory"), (5, "APX624", "apex::contrib::peer_memory::blob_view")]
        found += [(6, "APX617", "multihead_attn::self::cublas_gemmex::fwd"), (7, "APX706", "fused_softmax::scaled_softmax::fwd")]
        found += [(8, "APX624", "apex::contrib::nccl_p2p"), (10, "APX617", "apex_fused_dropout_cuda")]
        self.assertEqual(self.findings(source, "ops.cpp"), found)
        kinds = {each["line"]: each["kind"] for each in self.check()["findings"]}
        self.assertEqual([kinds[line] for line in (1, 5, 6, 7, 10)], ["reference", "call", "reference", "call", "call"])

    def test_names_that_variables_have_too_count_as_functions(self):
        declared = "void adam(at::Tensor p);\nvoid reversible_adam(at::Tensor p);\n"
        used = """void train() {
              adam(p);
              m.def("adam", &adam);
              torch::optim::Adam adam(params, options);
              Adam adam(params);
              step(adam, &adam);
              torch::adam(p);
            }"""
        self.assertEqual(self.rules(declared + used, "own.cpp"), [(1, "APX610"), (2, "APX610"), (4, "APX610"), (5, "APX610")])
        self.assertEqual(self.rules("void adam(at::Tensor p);\n" + used, "own.cpp"), [])

    def test_functions_of_common_names_count_beside_what_tells_of_their_rule(self):
        own = "Tensor flatten(Tensors t);\nTensor layer_norm(Tensor t);\n"
        self.assertEqual(self.rules("#include <torch/csrc/utils/tensor_flatten.h>\n" + own, "own.cpp"), [(2, "APX413")])
        self.assertEqual(self.rules('#include "type_shim.h"\n' + own, "own.cpp"), [(1, "APX522")])
        self.assertEqual(self.rules("void cuda_rms_norm_gradient();\n" + own, "own.cpp"), [(1, "APX313"), (3, "APX313")])


class Reports(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("train.py", 'from apex import amp\nfrom apex.contrib.sparsity import ASP\nparser.add_argument("--opt-level")\n'
                   "amp.initialize(m, o)\namp.initialize(m, o)\nASP.prune_trained_model(m, o)\namp.register_half_function(F, 'f')\n")
        self.write("sub/plain.py", "print(1)\n")

    def text(self, *arguments):
        return run(".", *arguments, cwd=self.folder).stdout

    def test_text_has_a_line_for_each_use_and_a_counterpart_for_each_rule(self):
        text = self.text()
        self.assertRegex(text, r"(?m)^train\.py:4 APX001 exact \(effort low\): apex\.amp\.initialize$")
        self.assertRegex(text, r"(?m)^train\.py:6 APX627 none \(effort medium\): apex\.contrib\.sparsity\.ASP\.prune_trained_model$")
        self.assertEqual(text.count('auto [net, opt] = amp::initialize(model, optimizer, "O2");\n    note: Returns'), 1)
        self.assertIn("\n    nearest: a mask of one's own", text)
        totals = ["2 files read, 1 use Apex", "4 of 4 calls classified, 5 of 5 uses"]
        totals += ["verdicts: 3 exact, 0 renamed, 1 behaves differently, 1 none", "effort: 1 none, 3 low, 1 medium, 0 high"]
        self.assertEqual(text.splitlines()[-4:], totals)

    def test_json_has_all_of_it(self):
        report = self.check(code=1)
        self.assertEqual(report["version"], 1)
        first = report["findings"][0]
        self.assertEqual((first["file"], first["line"], first["column"], first["rule"], first["kind"]), ("train.py", 3, 21, "APX038", "flag"))
        self.assertEqual(set(first), {"file", "line", "column", "name", "kind", "rule", "verdict", "effort", "counterpart", "include",
                                      "snippet", "differs", "page", "text"})
        self.assertEqual(first["page"], "apex_cpp/porting.md#apx038")
        totals = report["totals"]
        self.assertEqual(sum(totals["verdicts"].values()), len(report["findings"]))
        self.assertEqual(sum(totals["efforts"].values()), totals["uses"])
        self.assertEqual((totals["calls"], totals["calls_classified"], totals["files"], totals["files_with_apex"]), (4, 4, 2, 1))

    def test_sarif_has_what_its_schema_requires(self):
        log = json.loads(self.text("--format", "sarif"))
        self.assertEqual((log["version"], len(log["runs"])), ("2.1.0", 1))
        self.assertTrue(log["$schema"].endswith("sarif-2.1.0.json"))
        run_of_tool = log["runs"][0]
        rules = run_of_tool["tool"]["driver"]["rules"]
        self.assertEqual(run_of_tool["tool"]["driver"]["name"], "port_check")
        self.assertEqual(len({rule["id"] for rule in rules}), len(rules))
        self.assertEqual(len(run_of_tool["results"]), 5)
        for result in run_of_tool["results"]:
            self.assertEqual(rules[result["ruleIndex"]]["id"], result["ruleId"])
            self.assertIn(result["level"], ("none", "note", "warning", "error"))
            self.assertTrue(result["message"]["text"])
            place = result["locations"][0]["physicalLocation"]
            self.assertRegex(place["artifactLocation"]["uri"], r"^[\w./%-]+$")
            self.assertGreaterEqual(min(place["region"]["startLine"], place["region"]["startColumn"]), 1)
        levels = {result["ruleId"]: result["level"] for result in run_of_tool["results"]}
        self.assertEqual(levels, {"APX038": "note", "APX001": "note", "APX627": "error", "APX025": "warning"})
        for rule in rules:
            self.assertTrue(rule["shortDescription"]["text"] and rule["fullDescription"]["text"] and rule["help"]["text"])

    def test_sarif_uris_are_uris(self):
        self.write("a folder/über.py", "import apex\napex.amp.state_dict()\n")
        results = json.loads(self.text("--format", "sarif"))["runs"][0]["results"]
        uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results}
        self.assertEqual(uris, {"train.py", "a%20folder/%C3%BCber.py"})

    def test_out_writes_the_report_into_a_file(self):
        result = run(".", "--format", "json", "--out", "report.json", cwd=self.folder)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (1, "", "report: report.json\n"))
        self.assertEqual(json.loads((self.folder / "report.json").read_text()), self.check())


class Baseline(ToolTest):
    SOURCE = "from apex import amp\nfrom apex.contrib.sparsity import ASP\nASP.prune_trained_model(m, o)\namp.initialize(m, o)\n"

    def setUp(self):
        super().setUp()
        self.write("train.py", self.SOURCE)
        self.assertEqual(run(".", "--write-baseline", "known.json", cwd=self.folder).returncode, 0)

    def test_what_is_known_is_hidden_wherever_its_line_has_moved(self):
        self.write("train.py", "import os\n\n" + self.SOURCE.replace("(m, o)", "(m,  o)", 0))
        report = self.check("--baseline", "known.json", code=0)
        self.assertEqual((report["findings"], report["totals"]["hidden_by_baseline"]), ([], 2))

    def test_what_is_new_is_shown_also_where_the_same_is_known(self):
        self.write("train.py", self.SOURCE + "ASP.prune_trained_model(m, o)\nASP.prune_trained_model(n, o)\n")
        self.write("other.py", self.SOURCE)
        found = [(each["file"], each["line"]) for each in self.check("--baseline", "known.json", code=1)["findings"]]
        self.assertEqual(found, [("other.py", 3), ("other.py", 4), ("train.py", 5), ("train.py", 6)])

    def test_a_file_that_is_no_baseline_is_refused(self):
        for text in ("", "[]", '{"version": 2, "known": {}}', '{"version": 1, "known": {"a": "b"}}'):
            self.write("bad.json", text)
            result = run(".", "--baseline", "bad.json", cwd=self.folder)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stderr, "port_check: bad.json is no baseline of this tool: make one with --write-baseline\n")


class ExitCodes(ToolTest):
    def code(self, text):
        self.write("train.py", text)
        return run("train.py", cwd=self.folder).returncode

    def test_counterparts_for_everything(self):
        self.assertEqual(self.code("import apex\napex.amp.state_dict()\n"), 0)
        self.assertEqual(self.code("print(1)\n"), 0)

    def test_none_and_unknown(self):
        self.assertEqual(self.code("import apex\napex.contrib.sparsity.ASP\n"), 1)
        self.assertEqual(self.code("import apex\napex.amp.unheard_of()\n"), 1)

    def test_nothing_to_check(self):
        self.write("notes.txt", "apex\n")
        self.write(".hidden/train.py", "import apex\napex.contrib.sparsity.ASP\n")
        cases = {
            (): "name a source or a folder",
            (".",): "no Python, C++ or CUDA sources in .",
            ("gone.py",): "no such file or folder: gone.py",
            ("notes.txt",): "notes.txt is not a source that this tool reads",
            ("--explain", "APX999"): "no such rule: APX999",
            (".", "--format", "xml"): "invalid choice",
            ("train.py", "--baseline", "gone.json"): "gone.json",
        }
        for arguments, message in cases.items():
            with self.subTest(arguments):
                if "train.py" in arguments:
                    self.write("train.py", "import apex\n")
                result = run(*arguments, cwd=self.folder)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertRegex(result.stderr, re.escape(message))

    def test_what_cannot_be_read_is_told_and_the_rest_is_reported(self):
        self.write("train.py", "import apex\napex.amp.state_dict()\n")
        (self.folder / ".#train.py").symlink_to("user@host.1234")  # an editor's lock
        self.assertEqual(self.check(code=0)["notes"], [])
        (self.folder / "dangling.py").symlink_to("gone.py")
        report = self.check(code=2)
        self.assertEqual([found["rule"] for found in report["findings"]], ["APX018"])
        self.assertEqual((report["notes"], report["totals"]["files"]), (["cannot read dangling.py: No such file or directory"], 1))
        result = run(".", "--write-baseline", "known.json", cwd=self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("port_check: cannot read dangling.py: No such file or directory\n", result.stderr)

    def test_a_folder_that_cannot_be_read_is_told(self):
        self.write("train.py", "import apex\napex.amp.state_dict()\n")
        folder = os.open(self.folder, os.O_RDONLY)
        for _ in range(17):  # deeper than a path can be long: not even an administrator reads it by name
            os.mkdir("a" * 250, dir_fd=folder)
            inner = os.open("a" * 250, os.O_RDONLY, dir_fd=folder)
            os.close(folder)
            folder = inner
        os.close(folder)
        report = self.check(code=2)
        self.assertEqual([found["rule"] for found in report["findings"]], ["APX018"])
        self.assertRegex(report["notes"][0], r"^cannot read .*aaa: File name too long$")

    def test_a_source_named_twice_counts_once(self):
        self.write("train.py", "import apex\napex.amp.state_dict()\n")
        result = run("train.py", self.folder / "train.py", ".", "--format", "json", cwd=self.folder)
        self.assertEqual(json.loads(result.stdout)["totals"]["files"], 1)


if __name__ == "__main__":
    unittest.main()
