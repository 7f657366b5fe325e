"""Uses of Apex in Python sources of every kind, and where they are."""
import unittest

from support import ToolTest


class Python(ToolTest):
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


if __name__ == "__main__":
    unittest.main()
