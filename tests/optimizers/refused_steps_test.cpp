// Steps that fail: the error names the parameter, nothing changes, and the next step is unaffected.
#include <functional>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;
using torch::optim::OptimizerParamGroup;

// A defect of `param`, the error that reports it, and its repair.
struct Defect {
  std::string name;
  std::function<void(const at::Tensor& param, const at::Tensor& other)> make;
  std::string message;
  std::function<void(const at::Tensor& param)> repair;
};

void set_grad(const at::Tensor& param) { param.mutable_grad() = values(param.sizes(), 40, param.scalar_type()); }

const std::vector<Defect>& defects() {
  static const std::vector<Defect> kDefects = {
      {"Gaps",
       [](const at::Tensor& param, const at::Tensor&) {
         param.set_data(param.detach().repeat({1, 2}).narrow(1, 0, 5));
       },
       "has strides [10, 1]", [](const at::Tensor& param) { param.set_data(param.detach().contiguous()); }},
      {"SharedMemory", [](const at::Tensor& param, const at::Tensor& other) { param.set_data(other.detach()); },
       "shares memory with parameter 0 of group 1", [](const at::Tensor& param) { param.set_data(param.detach().clone()); }},
      {"DoubleGradient",
       [](const at::Tensor& param, const at::Tensor&) { param.mutable_grad() = param.grad().to(at::kDouble); },
       "has a gradient of dtype Double", set_grad},
      {"GradientOfAnotherShape", [](const at::Tensor& param, const at::Tensor&) { param.mutable_grad() = at::ones({5}); },
       "has a gradient of shape [5]", set_grad}};
  return kDefects;
}

using ClassAndDefect = std::tuple<OptimizerClass, Defect>;
class RefusedSteps : public ::testing::TestWithParam<ClassAndDefect> {
 protected:
  // Group 0 is valid, and so is parameter 0 of group 1, which has the values of parameter 1.
  static std::vector<at::Tensor> make_three() {
    return {values({130}, 1).requires_grad_(), values({33, 5}, 2).requires_grad_(), values({33, 5}, 2).requires_grad_()};
  }
  static OptimizerPtr over(const std::vector<at::Tensor>& params) {
    auto optimizer = make(std::get<0>(GetParam()), {params[0]});
    optimizer->add_param_group(OptimizerParamGroup({params[1], params[2]}));
    for (const at::Tensor& param : params) set_grad(param);
    return optimizer;
  }
};
INSTANTIATE_TEST_SUITE_P(Classes, RefusedSteps,
                         ::testing::Combine(::testing::ValuesIn(optimizer_classes()), ::testing::ValuesIn(defects())),
                         [](const auto& test) { return std::get<0>(test.param).name + std::get<1>(test.param).name; });

TEST_P(RefusedSteps, NameTheParameterAndChangeNothing) {
  const Defect& defect = std::get<1>(GetParam());
  const auto params = make_three(), fresh_params = make_three();
  auto optimizer = over(params), fresh = over(fresh_params);
  defect.make(params[2], params[1]);
  const auto before = copies_of(params), grad_before = copies_of({params[0].grad(), params[1].grad()});
  const std::string message = message_of([&] { optimizer->step(); });
  EXPECT_NE(message.find("Parameter 1 of group 1, of shape [33, 5],"), std::string::npos) << message;
  EXPECT_NE(message.find(defect.message), std::string::npos) << message;
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
  EXPECT_TRUE(same_bytes(grad_before, {params[0].grad(), params[1].grad()})) << "FusedLAMB writes to them";
  EXPECT_TRUE(optimizer->state().empty());
  defect.repair(params[2]);
  optimizer->step();
  fresh->step();
  EXPECT_TRUE(same_bytes(params, fresh_params)) << "the step after the repair is the first";
}

TEST(RefusedStepsOfNovoGrad, CheckTheNormTypesOfAllGroupsFirst) {
  const auto params = make_params(1);
  Groups groups;
  groups.emplace_back(std::vector<at::Tensor>{params[0]});
  groups.emplace_back(std::vector<at::Tensor>{params[1]},
                      std::make_unique<FusedNovoGradOptions>(FusedNovoGradOptions().norm_type(3)));
  FusedNovoGrad optimizer(groups);
  set_grads(params, 2);
  const auto before = copies_of(params);
  const std::string message = message_of([&] { optimizer.step(); });
  EXPECT_NE(message.find("norm_type is 3 in group 1"), std::string::npos) << message;
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
}

template <class Opt, class Options>
void expect_states_after_a_refusal(const Options& options) {
  for (const int steps_before : {0, 2}) {
    const auto params = make_params(1), other_params = make_params(1);
    Opt optimizer(params, options), other(other_params, options);
    const auto step_both = [&](int64_t seed) {
      set_grads(params, seed);
      set_grads(other_params, seed);
      optimizer.step();
      other.step();
    };
    for (int i = 0; i < steps_before; ++i) step_both(10 * i);
    set_grads(params, 30);
    params[1].mutable_grad() = params[2].detach().narrow(0, 0, 1);
    const auto before = copies_of(params);
    const std::string message = message_of([&] { optimizer.step(); });
    EXPECT_NE(message.find("params[2] shares memory with grads[1]"), std::string::npos) << message;
    EXPECT_TRUE(same_bytes(before, copies_of(params)));
    EXPECT_EQ(optimizer.state().empty(), steps_before == 0);
    step_both(40);
    EXPECT_TRUE(same_bytes(params, other_params)) << steps_before;
  }
}

// The kernel itself refuses a gradient in the memory of another parameter. By then the step has prepared the states. Of these
// two classes a first step differs from the others.
TEST(RefusedStepsByTheKernel, KeepTheStatesOfEarlierStepsAndLeaveNoOthers) {
  expect_states_after_a_refusal<FusedNovoGrad>(FusedNovoGradOptions());
  expect_states_after_a_refusal<FusedSGD>(FusedSGDOptions(0.1).momentum(0.9).dampening(0.5));
}

// A program puts states under parameters, as one that replaces parameters does.
class RefusedStates : public ::testing::TestWithParam<OptimizerClass> {
 protected:
  static void take_step(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params, int64_t seed) {
    set_grads(params, seed);
    optimizer.step();
  }
  static void* key_of(const at::Tensor& param) { return param.unsafeGetTensorImpl(); }
};
INSTANTIATE_TEST_SUITE_P(Classes, RefusedStates, ::testing::ValuesIn(optimizer_classes()), name_of_class);

TEST_P(RefusedStates, OfAnotherClassNameTheParameterAndChangeNothing) {
  const std::string name = GetParam().name, fused = name == "FusedSGD" ? "FusedAdam" : "FusedSGD";
  for (const bool of_torch : {true, false}) {
    const auto params = make_params(1), other_params = make_params(1);
    auto optimizer = make(GetParam(), params), other = make(GetParam(), other_params);
    take_step(*optimizer, params, 10);
    take_step(*other, other_params, 10);
    auto& state = optimizer->state()[key_of(params[2])];
    auto own = std::move(state);
    if (of_torch) {
      state = std::make_unique<torch::optim::AdamParamState>();
    } else if (fused == "FusedAdam") {
      state = std::make_unique<FusedAdamParamState>();
    } else {
      state = std::make_unique<FusedSGDParamState>();
    }
    const auto before = copies_of(params);
    const std::string message = message_of<c10::TypeError>([&] { take_step(*optimizer, params, 20); });
    const std::string foreign = of_torch ? "torch::optim::Adam" : "apex::optimizers::" + fused;
    EXPECT_NE(message.find("Parameter 2 of group 0, of shape [130], has state of the class " + foreign + "ParamState, and " +
                           name + " needs apex::optimizers::" + name + "ParamState"),
              std::string::npos)
        << message;
    EXPECT_TRUE(same_bytes(before, copies_of(params)));
    state = std::move(own);
    take_step(*optimizer, params, 20);
    take_step(*other, other_params, 20);
    EXPECT_TRUE(same_bytes(params, other_params));
  }
}

// `if (auto& state = optimizer.state()[key])` inserts it.
TEST_P(RefusedStates, NullIsNoState) {
  for (const int steps_before : {0, 2}) {
    const auto params = make_params(1), other_params = make_params(1);
    auto optimizer = make(GetParam(), params), other = make(GetParam(), other_params);
    for (int i = 0; i < steps_before; ++i) {
      take_step(*optimizer, params, 10 + i);
      take_step(*other, other_params, 10 + i);
    }
    optimizer->state()[key_of(params[2])] = nullptr;
    other->state().erase(key_of(other_params[2]));
    take_step(*optimizer, params, 20);
    take_step(*other, other_params, 20);
    EXPECT_TRUE(same_bytes(params, other_params)) << steps_before;
    EXPECT_NE(optimizer->state().at(key_of(params[2])), nullptr);
  }
}

// The steps before have made the state for another shape.
TEST(RefusedStepsLater, DetectAParameterWithAnotherShape) {
  const auto params = make_params(1);
  FusedAdam optimizer(params);
  set_grads(params, 2);
  optimizer.step();
  params[2].set_data(at::ones({2, 130}));
  set_grads(params, 3);
  const auto before = copies_of(params);
  const std::string message = message_of([&] { optimizer.step(); });
  EXPECT_NE(message.find("Parameter 2 of group 0, of shape [2, 130], has a 'exp_avg' of shape [130] from earlier steps"),
            std::string::npos)
      << message;
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
  optimizer.state().erase(params[2].unsafeGetTensorImpl());
  optimizer.step();
  EXPECT_FALSE(same_bytes(before, copies_of(params)));
}

// The memory of the last step is known to be apart, but only as long as it is the same.
TEST(RefusedStepsLater, DetectMemoryThatBecameShared) {
  const auto params = make_params(1);
  FusedAdam optimizer(params);
  set_grads(params, 2);
  optimizer.step();
  optimizer.step();
  params[2].set_data(params[0].detach().flatten().narrow(0, 35, 130));
  const std::string message = message_of([&] { optimizer.step(); });
  EXPECT_NE(message.find("Parameter 2 of group 0, of shape [130], shares memory with parameter 0 of group 0"),
            std::string::npos)
      << message;
}

// One end of its memory stays where it was.
TEST(RefusedStepsLater, DetectAParameterThatGrewIntoItsNeighbour) {
  for (const bool at_its_end : {true, false}) {
    const at::Tensor memory = values({30}, 1);
    const std::vector<at::Tensor> params = {values({1}, 2).requires_grad_(), values({1}, 3).requires_grad_()};
    const auto place = [&](const at::Tensor& param, int64_t begin, int64_t end) {
      param.set_data(memory.slice(0, begin, end));
      set_grad(param);
    };
    FusedSGD optimizer({OptimizerParamGroup({params[0]}), OptimizerParamGroup({params[1]})}, FusedSGDOptions(0.1));
    place(params[0], 0, 10);
    place(params[1], 20, 30);
    optimizer.step();
    at_its_end ? place(params[0], 0, 21) : place(params[1], 9, 30);
    optimizer.state().clear();  // has the old shape
    const at::Tensor before = memory.clone();
    const std::string message = message_of([&] { optimizer.step(); });
    EXPECT_NE(message.find("Parameter 0 of group 1, of shape"), std::string::npos) << message;
    EXPECT_NE(message.find("shares memory with parameter 0 of group 0"), std::string::npos) << message;
    EXPECT_TRUE(same_bytes(memory, before));
  }
}

// In any order of addresses, one beginning where another ends. An empty one shares no memory.
TEST(AcceptedSteps, OfParametersThatArePartsOfOneBuffer) {
  const at::Tensor memory = values({20}, 1);
  std::vector<at::Tensor> parts, apart;
  for (const auto& [begin, end] : {std::pair(10, 20), std::pair(5, 5), std::pair(0, 10)}) {
    const at::Tensor part = memory.slice(0, begin, end);
    apart.push_back(part.clone().requires_grad_());
    parts.push_back(part.clone().requires_grad_());
    parts.back().set_data(part);
  }
  FusedAdam optimizer(parts), expected(apart);
  set_grads(parts, 2);
  set_grads(apart, 2);
  optimizer.step();
  expected.step();
  EXPECT_TRUE(same_bytes(memory, at::cat({apart[2], apart[0]})));
}

}  // namespace
}  // namespace test
