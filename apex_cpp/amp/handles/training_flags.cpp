#include <apex_cpp/amp/handles/amped.h>

#include <utility>

namespace apex::amp::detail {

namespace {

// The original that is being set; null outside of that.
const torch::nn::Module*& set_again() {
  static thread_local const torch::nn::Module* original = nullptr;
  return original;
}

class SetAgain {
 public:
  explicit SetAgain(const torch::nn::Module& original) : outer_(std::exchange(set_again(), &original)) {}
  ~SetAgain() { set_again() = outer_; }
  SetAgain(const SetAgain&) = delete;
  SetAgain& operator=(const SetAgain&) = delete;

 private:
  const torch::nn::Module* outer_;
};

}  // namespace

void set_training_again(torch::nn::Module& original, bool on) {
  const SetAgain guard(original);
  original.train(on);
}

// The original itself may be a patched module of a derived class.
bool training_is_set(const torch::nn::Module& module) { return set_again() && set_again() != &module; }

// Parents come before their children, which are left with flags of their own.
void copy_training_flags(const torch::nn::Module& from, torch::nn::Module& to) {
  to.train(from.is_training());
  const auto sources = from.modules(/*include_self=*/false);
  const auto copies = to.modules(/*include_self=*/false);
  for (size_t i = 0; i < sources.size() && i < copies.size(); ++i) copies[i]->train(sources[i]->is_training());
}

}  // namespace apex::amp::detail
