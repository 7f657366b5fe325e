#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include <apex_cpp/amp/torch_amp/device_type_arg.h>

namespace apex::amp {

/// A block in which torch casts operations by its own lists: a guard over `at::autocast`. Python: `torch.amp.autocast`.
///
/// ```
/// at::Tensor loss;
/// {
///   amp::autocast guard("cuda");
///   loss = criterion(net->forward(x), y);
/// }
/// scaler.scale(loss).backward();
/// ```
/// It holds for the thread that made it and one device type; put it around forward and loss, and let `backward` stand outside.
/// Guards nest. The end of the outermost one drops torch's cache of cast weights; so do both ends of one whose dtype differs
/// from the block around it, since the cache would answer with the other dtype. The cache is shared by all threads: where two
/// of them run the same weights at different dtypes at once, one needs `cache_enabled` false. A weight that is changed inside
/// the block is seen by the next block only. No synchronisation.
///
/// LibTorch has no 16-bit `torch::nn::LSTM` for FP32 input on a CPU without AVX512: a NotImplementedError that says so. Give it
/// BF16 input (`x.to(torch::kBFloat16)`), or take level O4 or O5, whose LSTM works there.
class autocast {
 public:
  /// `device_type`: by default CUDA, as `torch.cuda.amp.autocast` has it. `dtype`: what the 16-bit operations run in; by
  /// default the enclosing block's, else torch's (half on CUDA, bfloat16 on a CPU). `enabled` false is a block without casts.
  /// `cache_enabled`: whether each weight is cast once; by default as around it. A warning, and a block without casts: for
  /// "cuda" where there is no GPU, and on other devices for a dtype that is not bfloat16 or half. Errors: RuntimeError for a
  /// device type that torch has no cast lists for.
  explicit autocast(DeviceTypeArg device_type = c10::kCUDA, std::optional<c10::ScalarType> dtype = std::nullopt,
                    bool enabled = true, std::optional<bool> cache_enabled = std::nullopt);
  autocast(const autocast&) = delete;
  autocast& operator=(const autocast&) = delete;
  ~autocast();

 private:
  struct State {
    bool enabled;
    c10::ScalarType dtype;
    bool cache_enabled;
  };
  static State current(c10::DeviceType device_type);
  void enter(const State& state) const;

  c10::DeviceType device_type_;
  State before_;
  bool changes_dtype_;
};

/// Whether casts are on for this device type in this thread. Python: `torch.is_autocast_enabled`.
bool is_autocast_enabled(DeviceTypeArg device_type);
/// The 16-bit type of this device type's casts in this thread. Python: `torch.get_autocast_dtype`.
c10::ScalarType get_autocast_dtype(DeviceTypeArg device_type);

}  // namespace apex::amp
