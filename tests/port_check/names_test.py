"""What the names of a Python source stand for: imports, scopes, branches and fallbacks."""
import unittest

from support import ToolTest


class Names(ToolTest):
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

    def test_attributes_that_getattr_and_hasattr_name(self):
        source = """
            import apex
            from apex import amp
            from apex.optimizers import FusedAdam
            if hasattr(optimizer, "_amp_stash"): pass
            getattr(amp, "scale_loss")(loss, o, loss_id=1)
            Adam = getattr(apex.optimizers, "FusedAdam", FusedAdam)
            Adam(p).step()
            known = hasattr(amp, "state_dict")
            known()
            getattr(amp, name)
            getattr(other, "scale_loss")
        """
        expected = [(4, "APX037"), (5, "APX013"), (5, "APX014"), (6, "APX202"), (6, "APX202"), (7, "APX202"), (7, "APX202"), (8, "APX018")]
        self.assertEqual(self.rules(source), expected)

    def test_functions_and_arguments_that_partial_prepares(self):
        source = """
            import functools
            from functools import partial
            from apex import amp
            from apex.optimizers import FusedAdam
            start = partial(amp.initialize, opt_level="O1")
            start(m, o, loss_scale=2.0)
            opt = functools.partial(FusedAdam, lr=0.1)(p)
            opt.step()
            partial(amp.initialize, o, precision=16)(m)
            partial(other, amp.state_dict())
            partial(*several)
        """
        expected = [(5, "APX001"), (5, "APX002"), (6, "APX001"), (6, "APX008"), (7, "APX202"), (8, "APX202")]
        self.assertEqual(self.rules(source), [*expected, (9, "APX001"), (9, "APX000"), (10, "APX018")])

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


if __name__ == "__main__":
    unittest.main()
