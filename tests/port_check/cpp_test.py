"""Uses of Apex in C++ and CUDA sources, and where they are."""
import unittest

from support import ToolTest, run


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

    def test_a_call_that_apex_cpp_has_works_unchanged(self):
        self.write("ops.cpp", "void scale() { multi_tensor_scale_cuda(1, flag, lists, 0.5f); }\n")
        found = self.check(code=0)["findings"][0]
        self.assertEqual((found["counterpart"], found["include"], found["snippet"]), ("unchanged", "apex_cpp/amp_C.h", ""))
        text = run(".", cwd=self.folder).stdout
        self.assertIn("ops.cpp:1 APX503 exact (effort none): multi_tensor_scale_cuda\n    -> unchanged, include <apex_cpp/amp_C.h>\n1 files", text)
        # Python calls it by another name, and apex_cpp has no function of this name with one argument.
        self.write("ops.cpp", "void scale() { multi_tensor_scale_cuda(1); }\n")
        self.write("ops.py", "import amp_C\namp_C.multi_tensor_scale(1, flag, lists, 0.5)\n")
        for each in self.check(code=0)["findings"]:
            self.assertNotEqual((each["counterpart"], each["snippet"]), ("unchanged", ""), each["name"])

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

    def test_columns_in_macros_are_those_of_the_file(self):
        lines = ["#define CALL(x)      multi_tensor_scale_cuda(x)", "#define MORE(x) f(x); \\", "  multi_tensor_adam_cuda(x)"]
        self.write("macros.cu", "\n".join(lines) + "\n")
        places = [(found["line"], found["column"]) for found in self.check()["findings"]]
        self.assertEqual(places, [(1, lines[0].index("multi") + 1), (3, 3)])


if __name__ == "__main__":
    unittest.main()
