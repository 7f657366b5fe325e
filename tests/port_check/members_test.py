"""Members of Apex's objects in Python sources: methods, attributes, the loss scaler's own."""
import unittest

from support import ToolTest


class Members(ToolTest):
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

    def test_arguments_of_methods(self):
        source = "from apex.optimizers import FusedAdam\nadam = FusedAdam(p)\nadam.step(grad_scaler=scaler)\nadam.step(closure=f)\n"
        self.assertEqual(self.rules(source), [(2, "APX202"), (3, "APX202"), (3, "APX211"), (4, "APX202")])

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


if __name__ == "__main__":
    unittest.main()
