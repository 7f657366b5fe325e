// Everything that initialize returns or connects may be destroyed in any order, and the rest keeps working.
#include <algorithm>
#include <array>

#include "tests/amp/optimizers.h"

namespace apex::test {
namespace {

using torch::Tensor;

enum class Part { model, original, net, handle, session, block };

/// A set-up in the middle of a block, each part of which can be dropped by itself.
struct Whole {
  explicit Whole(const std::string& level) {
    auto handles = amp::initialize(*model, *original, level, quiet().loss_scale(8.0));
    net = std::make_unique<amp::Model<Mlp>>(std::move(handles.first));
    handle = std::make_unique<amp::AmpOptimizer<torch::optim::SGD>>(std::move(handles.second));
    bias = (*model)->fc2->bias;  // of a sum: its gradient is never zero
    block = std::make_unique<amp::ScaledLoss>(amp::scale_loss((*net)->forward(features()).sum(), *handle));
    block->backward();
  }
  void drop(Part part) {
    switch (part) {
      case Part::model:
        return model.reset();
      case Part::original:
        return original.reset();
      case Part::net:
        return net.reset();
      case Part::handle:
        return handle.reset();
      case Part::session:
        return amp::reset();
      case Part::block:
        return block.reset();
    }
  }
  std::unique_ptr<Mlp> model = std::make_unique<Mlp>();
  std::unique_ptr<torch::optim::SGD> original = std::make_unique<torch::optim::SGD>((*model)->parameters(), 0.1);
  std::unique_ptr<amp::Model<Mlp>> net;
  std::unique_ptr<amp::AmpOptimizer<torch::optim::SGD>> handle;
  std::unique_ptr<amp::ScaledLoss> block;
  Tensor bias;
};

class Destruction : public AmpTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Levels, Destruction, ::testing::Values("O0", "O1", "O2", "O5", "O6"));

TEST_P(Destruction, InAnyOrder) {
  const std::string level = GetParam();
  std::array<Part, 6> order{Part::model, Part::original, Part::net, Part::handle, Part::session, Part::block};
  do {
    Whole whole(level);
    bool ended = false;
    for (const Part part : order) {
      whole.drop(part);
      ended = ended || part == Part::block;
      // A handle that outlives its block can step, whichever other objects are destroyed.
      if (whole.handle && ended) {
        const auto before = bytes_of(whole.bias);
        whole.handle->step();
        ASSERT_NE(bytes_of(whole.bias), before);
        whole.handle->zero_grad();
        ended = false;
      }
      if (whole.net) (*whole.net)->forward(features());
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace
}  // namespace apex::test
