#pragma once

namespace apex::amp::detail {

/// A module that counts as a batch norm where `keep_batchnorm_fp32` and fp16_utils spare those, beside LibTorch's own.
class BatchNormModule {
 public:
  virtual bool is_affine() const = 0;

 protected:
  ~BatchNormModule() = default;
};

}  // namespace apex::amp::detail
