#include <apex_cpp/amp/torch_amp/lstm_check.h>

#include <ATen/Context.h>
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

namespace apex::amp::detail {
namespace {

using Lstm = at::_ops::lstm_input;
constexpr auto kKey = c10::DispatchKey::AutocastCPU;  // where LibTorch has no kernel of its own for the operator
constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

bool onednn_has(c10::ScalarType dtype) {
  const char* op = dtype == at::kHalf ? "mkldnn::_is_mkldnn_fp16_supported" : "mkldnn::_is_mkldnn_bf16_supported";
  return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<bool()>().call();
}

// The calls that LibTorch gives to oneDNN, whose arguments autocast then makes 16-bit.
bool goes_to_onednn(const at::Tensor& input, at::TensorList states) {
  const bool has_projection = states.size() == 2 && states[0].size(-1) != states[1].size(-1);
  return at::globalContext().userEnabledMkldnn() && input.is_cpu() && input.scalar_type() == at::kFloat && input.numel() > 0 &&
         !has_projection;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> run_lstm(c10::DispatchKeySet keys, const at::Tensor& input,
                                                        at::TensorList states, at::TensorList params, bool has_biases,
                                                        int64_t num_layers, double dropout, bool train, bool bidirectional,
                                                        bool batch_first) {
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !goes_to_onednn(input, states) || onednn_has(dtype), "aten::lstm under autocast: oneDNN has no ", dtype,
      " LSTM for this CPU, which is without AVX512, and LibTorch gives it every LSTM with Float input (here of shape ",
      input.sizes(),
      "). Give the LSTM BFloat16 input, x.to(torch::kBFloat16); or train at amp::initialize's level O4 or O5 in "
      "place of amp::autocast.");
  return Lstm::redispatch(keys & kBelow, input, states, params, has_biases, num_layers, dropout, train, bidirectional,
                          batch_first);
}

}  // namespace

void check_lstm_under_autocast() {
  if (onednn_has(at::kBFloat16)) return;
  static const torch::Library library = [] {
    torch::Library aten(torch::Library::IMPL, "aten", kKey, __FILE__, static_cast<uint32_t>(__LINE__));
    aten.impl("lstm.input", TORCH_FN(run_lstm));
    return aten;
  }();
}

}  // namespace apex::amp::detail
