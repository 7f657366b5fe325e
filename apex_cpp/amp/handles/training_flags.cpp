#include <apex_cpp/amp/handles/amped.h>

#include <utility>

namespace apex::amp::detail {
namespace {

bool& is_set_again() {
  static thread_local bool is_set = false;
  return is_set;
}

class SetAgain {
 public:
  SetAgain() : outer_(std::exchange(is_set_again(), true)) {}
  ~SetAgain() { is_set_again() = outer_; }
  SetAgain(const SetAgain&) = delete;
  SetAgain& operator=(const SetAgain&) = delete;

 private:
  bool outer_;
};

}  // namespace

void set_training_again(torch::nn::Module& original, bool on) {
  const SetAgain guard;
  original.train(on);
}

bool training_is_set() { return is_set_again(); }

// Parents come before their children, which are left with flags of their own.
void copy_training_flags(const torch::nn::Module& from, torch::nn::Module& to) {
  to.train(from.is_training());
  const auto sources = from.modules(/*include_self=*/false);
  const auto copies = to.modules(/*include_self=*/false);
  for (size_t i = 0; i < sources.size() && i < copies.size(); ++i) copies[i]->train(sources[i]->is_training());
}

}  // namespace apex::amp::detail
