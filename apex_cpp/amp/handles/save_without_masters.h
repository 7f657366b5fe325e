#pragma once

namespace torch::optim {
class Optimizer;
}

namespace apex::amp::detail {

/// While it lives, the `save` of this optimizer's handle leaves the masters out on this thread: a checkpoint writes them
/// itself, and an archive would only hold copies of them. Any other optimizer saves as ever.
class SaveWithoutMasters {
 public:
  explicit SaveWithoutMasters(const torch::optim::Optimizer& optimizer);
  ~SaveWithoutMasters();
  SaveWithoutMasters(const SaveWithoutMasters&) = delete;
  SaveWithoutMasters& operator=(const SaveWithoutMasters&) = delete;

  static bool applies_to(const torch::optim::Optimizer* handle);

 private:
  const torch::optim::Optimizer* outer_;
};

}  // namespace apex::amp::detail
