#include "network.h"

namespace bench::train {

const std::vector<Task>& tasks() {
  static const std::vector<Task> all{residual_task(), transformer_task(), mlp_task(), lstm_task(), small_transformer_task()};
  return all;
}

}  // namespace bench::train
