#include <ATen/Operators.h>

#include <apex_cpp/amp/casts/kernel_library.h>
#include <apex_cpp/amp/casts/unboxed_kernel.h>
#include <apex_cpp/amp/compute/operators.h>
#include <apex_cpp/amp/compute/widen.h>

namespace apex::amp::detail {
namespace {

namespace op = at::_ops;

/// What lies below the cast engine for a recurrent layer: on 16-bit CPU tensors that are to be computed in FP32 the whole layer
/// is, above autograd, so that its weights become FP32 once a call and not once a time step. Autograd records the conversions.
template <class Op, class Schema = typename Op::schema>
struct Float32Layer;

template <class Op, class Result, class... Args>
struct Float32Layer<Op, Result(Args...)> {
  static Result redispatch(c10::DispatchKeySet keys, Args... args) {
    Operands operands;
    (operands.add(args), ...);
    const auto type = type_to_widen(operands);
    if (!type) return Op::redispatch(keys, static_cast<Args&&>(args)...);
    return rounded(Op::redispatch(keys, in_float32(args)...), *type);
  }
};

template <class... Ops>
struct RecurrentLayers {
  static void register_in(torch::Library& library) { (UnboxedKernel<Ops, Float32Layer<Ops>>::register_in(library), ...); }
};

using AllRecurrent =
    RecurrentLayers<op::rnn_relu_input, op::rnn_relu_data, op::rnn_tanh_input, op::rnn_tanh_data, op::gru_input, op::gru_data,
                    op::lstm_input, op::lstm_data, op::rnn_relu_cell, op::rnn_tanh_cell, op::gru_cell, op::lstm_cell>;

const AtenKernels& recurrent_kernels() {
  static const AtenKernels kernels(kCastKey, AllRecurrent::register_in);
  return kernels;
}

[[maybe_unused]] const AtenKernels& recurrent_at_load = recurrent_kernels();

}  // namespace

void register_recurrent_layers() { recurrent_kernels(); }

}  // namespace apex::amp::detail
