// Names of records, and tensors without a name.
#include "tests/errors.h"
#include "tests/statistics/support.h"

namespace apex::test {
namespace {

std::vector<std::string> names_of(const std::vector<amp::TensorStatistics>& records) {
  std::vector<std::string> names;
  for (const auto& record : records) names.push_back(record.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(StatisticsRecords, OfAModuleHaveItsParametersNames) {
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::ReLU(), torch::nn::Linear(2, 1));
  const auto records = amp::statistics(*net);
  EXPECT_EQ(names_of(records), (Names{"0.weight", "0.bias", "2.weight", "2.bias"}));
  EXPECT_EQ(records[0].numel, 6);
  EXPECT_EQ(records[0].abs_max, net->parameters()[0].abs().max().item<float>());
}

TEST(StatisticsRecords, OfGradientsCoverParametersThatHaveOne) {
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::Linear(2, 1));
  net->parameters()[2].mutable_grad() = torch::full({1, 2}, 0.5);
  const auto records = amp::grad_statistics(*net);
  EXPECT_EQ(names_of(records), (Names{"1.weight"}));
  EXPECT_EQ(records[0].mean, 0.5);
  EXPECT_EQ(records[0].norm, std::sqrt(0.5));
}

TEST(StatisticsRecords, OfTiedParametersAreListedOnce) {
  const torch::nn::Linear linear(2, 2);
  torch::nn::Sequential net(linear, linear);
  EXPECT_EQ(names_of(amp::statistics(*net)), (Names{"0.weight", "0.bias"}));
}

TEST(StatisticsRecords, OfAListUseTheNamesOfTheLatestInitialize) {
  torch::nn::Linear model(2, 2);
  const auto net = amp::initialize(model, "O1", amp::InitializeOptions().verbosity(0));
  EXPECT_EQ(names_of(amp::statistics(std::vector<torch::Tensor>{torch::ones({1}), model->bias})), (Names{"tensor 0", "bias"}));
  amp::reset();
}

TEST(StatisticsRecords, OfNoTensorsAreEmpty) { EXPECT_TRUE(amp::statistics(std::vector<torch::Tensor>{}).empty()); }

TEST(StatisticsRecords, ErrorsNameTheTensorAndTheRemedy) {
  const auto message = [](const torch::Tensor& tensor) {
    return message_of([&] { amp::statistics(amp::NamedTensors{{"fine", torch::ones({2})}, {"fc.weight", tensor}}); });
  };
  EXPECT_EQ(message(torch::ones({2}, torch::kLong)),
            "statistics: 'fc.weight' has dtype Long. Convert it to float16, bfloat16, float32 or float64.");
  EXPECT_EQ(message(torch::ones({2}).to_sparse()),
            "statistics: 'fc.weight' has layout Sparse. Pass its values, or tensor.to_dense().");
  EXPECT_NE(message({}).find("'fc.weight' is undefined"), std::string::npos);
}

// Tensors of devices without kernels are copied to the CPU, and LibTorch has nothing to copy here.
TEST(StatisticsRecords, ATensorWithoutValuesIsAnError) {
  expect_error<c10::NotImplementedError>([] { amp::statistics(std::vector<torch::Tensor>{torch::ones({2}, torch::kMeta)}); },
                                         {"meta"});
}

}  // namespace
}  // namespace apex::test
