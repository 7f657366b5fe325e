#include <apex_cpp/fp16_utils/networks.h>

namespace apex::fp16_utils {

torch::nn::Module& BN_convert_float(torch::nn::Module& module) {
  module.apply([](torch::nn::Module& each) {
    if (is_affine_batch_norm(each)) convert_module(each, torch::kFloat);
  });
  return module;
}

}  // namespace apex::fp16_utils
