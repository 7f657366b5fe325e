#include <apex_cpp/amp/handles/amped.h>

namespace apex::amp::detail {

// Parents come before their children, which are left with flags of their own.
void copy_training_flags(const torch::nn::Module& from, torch::nn::Module& to) {
  to.train(from.is_training());
  const auto sources = from.modules(/*include_self=*/false);
  const auto copies = to.modules(/*include_self=*/false);
  for (size_t i = 0; i < sources.size() && i < copies.size(); ++i) copies[i]->train(sources[i]->is_training());
}

}  // namespace apex::amp::detail
