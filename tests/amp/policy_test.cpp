// amp::Policy: TensorFlow's names for opt levels.
#include <thread>

#include "opt_levels/resolve.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using amp::OptLevel;
using amp::Policy;

struct Row {
  const char* name;
  torch::ScalarType compute, variable;
  const char* level;
  std::optional<torch::ScalarType> model, functions;
  bool dynamic;
};

class PolicyTable : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(
    Names, PolicyTable,
    ::testing::Values(Row{"float32", torch::kFloat, torch::kFloat, "O0", torch::kFloat, std::nullopt, false},
                      Row{"mixed_float16", torch::kHalf, torch::kFloat, "O1", std::nullopt, torch::kHalf, true},
                      Row{"mixed_bfloat16", torch::kBFloat16, torch::kFloat, "O4", std::nullopt, torch::kBFloat16, false},
                      Row{"float16", torch::kHalf, torch::kHalf, "O3", torch::kHalf, std::nullopt, false},
                      Row{"bfloat16", torch::kBFloat16, torch::kBFloat16, "O3", torch::kBFloat16, std::nullopt, false}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(PolicyTable, SelectsDtypesAndLevel) {
  const auto& row = GetParam();
  const Policy policy(row.name);
  EXPECT_EQ(policy.name(), row.name);
  EXPECT_EQ(policy.compute_dtype(), row.compute);
  EXPECT_EQ(policy.variable_dtype(), row.variable);
  const OptLevel level = policy;
  EXPECT_EQ(level.name(), row.level);
  const auto properties = opt_levels::resolve(level).properties;
  EXPECT_EQ(properties.cast_model_type, row.model);
  EXPECT_EQ(properties.patch_functions_type, row.functions);
  EXPECT_EQ(properties.loss_scale.dynamic, row.dynamic);
}

class PolicyInitialize : public AmpTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Names, PolicyInitialize,
                         ::testing::Values("float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"));

TEST_P(PolicyInitialize, CreatesVariablesInItsVariableDtypeAndTrains) {
  const Policy policy(GetParam());
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 10.0);
  auto [net, opt] = amp::initialize(model, optimizer, policy, quiet());
  const auto before = bytes_of(*model);
  for (const auto& param : model->parameters()) EXPECT_EQ(param.scalar_type(), policy.variable_dtype());
  EXPECT_EQ(amp::properties().opt_level, policy.level().name());
  // In float32, and small: float16 gradients are to stay finite at the first loss scale, 2^16.
  const auto loss = net->forward(features()).to(torch::kFloat).square().mean() * 0.01;
  { amp::scale_loss(loss, opt).backward(); }
  opt.step();
  EXPECT_NE(bytes_of(*model), before);
}

TEST(Policy, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  EXPECT_THROW(Policy("float64"), c10::ValueError);
  EXPECT_TRUE(contains(message_of([] { Policy("mixed_half"); }),
                       "no policy 'mixed_half'. Use one of float32, mixed_float16, mixed_bfloat16, float16, bfloat16"));
}

TEST(Policy, TheGlobalPolicyIsFloat32ByDefaultAndSharedByAllThreads) {
  EXPECT_EQ(amp::global_policy(), Policy("float32"));
  amp::set_global_policy("mixed_bfloat16");
  std::string seen;
  std::thread([&] { seen = amp::global_policy().name(); }).join();
  EXPECT_EQ(seen, "mixed_bfloat16");
  amp::set_global_policy("float32");
  EXPECT_NE(amp::global_policy(), Policy("mixed_bfloat16"));
}

TEST(Policy, TheGlobalPolicyMayBeSetFromManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> torn{0};
  for (const char* name : {"mixed_float16", "bfloat16", "float32", "float16"}) {
    threads.emplace_back([name, &torn] {
      for (int i = 0; i < 200; ++i) {
        amp::set_global_policy(name);
        const auto policy = amp::global_policy();
        torn += policy.compute_dtype() != Policy(policy.name()).compute_dtype();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  amp::set_global_policy("float32");
}

}  // namespace
}  // namespace apex::test
