// Options of groups: they must have the optimizer's options class, and accept the same values.
#include <apex_cpp/amp.h>
#include <apex_cpp/parallel.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;
using torch::optim::OptimizerParamGroup;

template <class Options>
OptimizerParamGroup group_with(const Options& options) {
  return OptimizerParamGroup({values({3}, 1).requires_grad_()}, std::make_unique<Options>(options));
}

// The constructor's error for the second of two groups. add_param_group must give the same error and change nothing.
template <class Opt, class Error, class Options>
std::string refusal(const Options& options) {
  const Groups groups = {group_with(typename OptionsOf<Opt>::type(0.1)), group_with(options)};
  const std::string message = message_of<Error>([&] { Opt optimizer(groups, {0.1}); });
  Opt optimizer({groups[0]}, {0.1});
  EXPECT_EQ(message_of<Error>([&] { optimizer.add_param_group(groups[1]); }), message);
  EXPECT_EQ(optimizer.param_groups().size(), 1u);
  return message;
}

class EveryClassesGroups : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, EveryClassesGroups, ::testing::ValuesIn(optimizer_classes()), name_of_class);

// Through torch::optim::Optimizer, whose add_param_group is not virtual, a group is first seen by the step.
TEST_P(EveryClassesGroups, RejectOptionsOfAnotherClassAndChangeNothing) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  optimizer->add_param_group(OptimizerParamGroup({values({3}, 1).requires_grad_()}));
  optimizer->param_groups()[1].set_options(std::make_unique<torch::optim::AdamOptions>(0.1));
  set_grads(params, 2);
  const auto before = copies_of(params);
  const std::string message = message_of<c10::TypeError>([&] { optimizer->step(); });
  EXPECT_NE(message.find("Group 1 of " + GetParam().name + " has options of the class torch::optim::AdamOptions. Give it " +
                         GetParam().name + "Options"),
            std::string::npos)
      << message;
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
}

TEST_P(EveryClassesGroups, RejectReplacementOptionsOfAnotherClass) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  set_grads(params, 2);
  optimizer->step();
  optimizer->param_groups()[0].set_options(std::make_unique<torch::optim::AdamOptions>(0.1));
  EXPECT_THROW(optimizer->step(), c10::TypeError);
}

TEST_P(EveryClassesGroups, RejectAParameterPutIntoASecondGroup) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  OptimizerParamGroup group({values({3}, 1).requires_grad_()});
  group.set_options(optimizer->param_groups()[0].options().clone());
  optimizer->add_param_group(group);
  set_grads(params, 2);
  optimizer->step();
  optimizer->param_groups()[1].params()[0] = params[0];
  EXPECT_THROW(optimizer->step(), c10::ValueError);
}

// As a cosine's end leaves it; other tensors in the group are no other group.
TEST_P(EveryClassesGroups, KeepTheSchedulersRateWhenTensorsChange) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  optimizer->param_groups()[0].options().set_lr(-1e-20);
  const torch::Tensor other = params[0].detach().clone().requires_grad_();
  optimizer->param_groups()[0].params()[0] = other;
  EXPECT_NO_THROW(optimizer->step());
}

// Schedulers may move a rate where they like.
TEST_P(EveryClassesGroups, AcceptAnyLearningRateLater) {
  const auto params = make_params(1);
  auto optimizer = make(GetParam(), params);
  optimizer->param_groups()[0].options().set_lr(-1e-20);
  set_grads(params, 2);
  optimizer->step();
  const std::string bytes = saved(*optimizer);
  load(*optimizer, bytes);
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), -1e-20);
}

// Where `static_cast<Torchs&>(options)` has the number. A sanitizer stops at such a cast.
template <class Torchs>
char* place_as(torch::optim::OptimizerOptions& options, double& (*number)(Torchs&)) {
  Torchs layout(0.1);
  const auto offset = reinterpret_cast<char*>(&number(layout)) - reinterpret_cast<char*>(&layout);
  return reinterpret_cast<char*>(&options) + offset;
}

template <class Torchs>
double read_as(torch::optim::OptimizerOptions& options, double& (*number)(Torchs&)) {
  double value = 0;
  std::memcpy(&value, place_as(options, number), sizeof value);
  return value;
}

template <class Torchs>
void write_as(torch::optim::OptimizerOptions& options, double& (*number)(Torchs&), double value) {
  std::memcpy(place_as(options, number), &value, sizeof value);
}

double& lr_of_adam(torch::optim::AdamOptions& options) { return options.lr(); }
double& decay_of_adam(torch::optim::AdamOptions& options) { return options.weight_decay(); }
double& lr_of_adamw(torch::optim::AdamWOptions& options) { return options.lr(); }
double& lr_of_sgd(torch::optim::SGDOptions& options) { return options.lr(); }
double& momentum_of_sgd(torch::optim::SGDOptions& options) { return options.momentum(); }
double& decay_of_sgd(torch::optim::SGDOptions& options) { return options.weight_decay(); }
double& momentum_of_rmsprop(torch::optim::RMSpropOptions& options) { return options.momentum(); }
double& eps_of_adagrad(torch::optim::AdagradOptions& options) { return options.eps(); }
double& tolerance_of_lbfgs(torch::optim::LBFGSOptions& options) { return options.tolerance_change(); }

using WriteOptions = std::function<void(torch::optim::OptimizerOptions&)>;

std::vector<std::pair<std::string, WriteOptions>> writes_as_another_class() {
  const auto sets = [](auto* number, double value) -> WriteOptions {
    return [=](torch::optim::OptimizerOptions& options) { write_as(options, number, value); };
  };
  const auto halves_lr = [](torch::optim::OptimizerOptions& options) {
    write_as(options, lr_of_adam, 0.5 * read_as(options, lr_of_adam));
  };
  return {{"lr of Adam", sets(lr_of_adam, 0.2)},
          {"lr of Adam, halved", halves_lr},
          {"weight_decay of Adam", sets(decay_of_adam, 0.2)},
          {"lr of AdamW", sets(lr_of_adamw, 0.2)},
          {"lr of SGD", sets(lr_of_sgd, 0.2)},
          {"momentum of SGD", sets(momentum_of_sgd, 0.2)},
          {"weight_decay of SGD", sets(decay_of_sgd, 0)},
          {"momentum of RMSprop", sets(momentum_of_rmsprop, 0.2)},
          {"eps of Adagrad", sets(eps_of_adagrad, 0.2)},
          {"tolerance_change of LBFGS", sets(tolerance_of_lbfgs, 0.2)}};
}

// A program keeps the cast to torch::optim::AdamOptions when it replaces torch::optim::Adam.
TEST_P(EveryClassesGroups, RejectOptionsWrittenAsAnotherClassAndChangeNothing) {
  for (const auto& [what, write] : writes_as_another_class()) {
    SCOPED_TRACE(what);
    const auto params = make_params(1);
    auto optimizer = make(GetParam(), params);
    optimizer->add_param_group(OptimizerParamGroup({values({3}, 1).requires_grad_()}));
    auto& group = optimizer->param_groups()[1];
    const auto own = group.options().clone();
    write(group.options());
    set_grads(params, 2);
    const auto before = copies_of(params);
    for (const bool after_set_lr : {false, true}) {
      const std::string message = message_of<c10::TypeError>([&] { optimizer->step(); });
      const std::string& name = GetParam().name;
      EXPECT_NE(message.find("Group 1 of " + name + ": the options were written after a cast to another class"),
                std::string::npos)
          << message;
      EXPECT_NE(message.find("Cast to " + name + "Options, or call options().set_lr(rate)"), std::string::npos) << message;
      EXPECT_TRUE(same_bytes(before, copies_of(params)));
      EXPECT_EQ(group.options().get_lr(), after_set_lr ? 0.02 : own->get_lr()) << "the write has changed an option";
      group.options().set_lr(0.02);  // works, but the program's cast is still wrong
    }
    group.set_options(own->clone());
    optimizer->step();
    EXPECT_FALSE(same_bytes(before, copies_of(params)));
  }
}

// One parameter and its gradients, the same for the same seed. Zeros add nothing to norms over all groups.
struct OneParam {
  explicit OneParam(int64_t seed_, bool zeros_ = false) : seed(seed_), zeros(zeros_) {}
  void next_grad() { param.mutable_grad() = zeros ? at::zeros({5, 6}) : values({5, 6}, 100 * seed + ++steps); }

  int64_t seed, steps = 0;
  bool zeros;
  at::Tensor param = values({5, 6}, seed).requires_grad_();
};

// The group of the parameter, with a copy of the options of the optimizer's first group.
OptimizerParamGroup group_like_first(const torch::optim::Optimizer& optimizer, const OneParam& one) {
  return OptimizerParamGroup({one.param}, optimizer.param_groups()[0].options().clone());
}

void step_with(torch::optim::Optimizer& optimizer, const std::vector<OneParam*>& params, int steps) {
  for (int i = 0; i < steps; ++i) {
    for (OneParam* each : params) each->next_grad();
    optimizer.step();
  }
}

// Also where no group was left in between.
TEST(CountsOfGroups, ReturnWithTheOnlyGroup) {
  OneParam one(1);
  FusedAdam optimizer(std::vector<at::Tensor>{one.param}, FusedAdamOptions(0.1));
  step_with(optimizer, {&one}, 3);
  auto& groups = optimizer.param_groups();
  const OptimizerParamGroup out = groups[0];
  groups.clear();
  optimizer.step();
  EXPECT_EQ(optimizer.steps_taken(), 0) << "there is no such group";
  groups.push_back(out);
  step_with(optimizer, {&one}, 1);
  EXPECT_EQ(optimizer.steps_taken(), 4);
}

// As a new head in the place of the old one: Apex counts the steps of each group.
TEST_P(EveryClassesGroups, BeginAtTheirOwnFirstStepInThePlaceOfAnother) {
  for (const bool by_hand : {false, true}) {
    OneParam body(1, /*zeros_=*/true), old_head(2), new_head(3), alone(3);
    auto optimizer = make(GetParam(), {body.param});
    optimizer->add_param_group(group_like_first(*optimizer, old_head));
    step_with(*optimizer, {&body, &old_head}, 3);
    optimizer->param_groups().pop_back();
    const auto group = group_like_first(*optimizer, new_head);
    by_hand ? optimizer->param_groups().push_back(group) : optimizer->add_param_group(group);
    step_with(*optimizer, {&body, &new_head}, 3);
    auto other = make(GetParam(), {alone.param});
    step_with(*other, {&alone}, 3);
    EXPECT_TRUE(same_bytes(new_head.param, alone.param)) << "by hand: " << by_hand;
  }
}

TEST_P(EveryClassesGroups, KeepTheirStateWhereTheyAreTakenOutAndPutBack) {
  OneParam body(1, /*zeros_=*/true), head(2), alone(2);
  auto optimizer = make(GetParam(), {body.param});
  optimizer->add_param_group(group_like_first(*optimizer, head));
  step_with(*optimizer, {&body, &head}, 3);
  auto& groups = optimizer->param_groups();
  const OptimizerParamGroup out = groups.back();
  groups.pop_back();
  step_with(*optimizer, {&body}, 2);
  groups.push_back(out);
  step_with(*optimizer, {&body, &head}, 3);
  auto other = make(GetParam(), {alone.param});
  step_with(*other, {&alone}, 6);
  EXPECT_TRUE(same_bytes(head.param, alone.param));
}

TEST_P(EveryClassesGroups, KeepTheirStateWhereOthersBeforeThemAreRemovedOrMoved) {
  for (const bool removed : {true, false}) {
    OneParam body(1, /*zeros_=*/true), head(2), alone(2);
    auto optimizer = make(GetParam(), {body.param});
    step_with(*optimizer, {&body}, 2);
    optimizer->add_param_group(group_like_first(*optimizer, head));
    step_with(*optimizer, {&body, &head}, 3);
    auto& groups = optimizer->param_groups();
    removed ? void(groups.erase(groups.begin())) : std::swap(groups[0], groups[1]);
    const std::string bytes = saved(*optimizer);
    step_with(*optimizer, {&body, &head}, 3);
    auto other = make(GetParam(), {alone.param});
    step_with(*other, {&alone}, 3);
    if (removed) load(*other, bytes);  // written with the groups as they were then
    step_with(*other, {&alone}, 3);
    EXPECT_TRUE(same_bytes(head.param, alone.param)) << "removed: " << removed;
  }
}

// As in Apex, where the count is the group's.
TEST(CountsOfGroups, StayWithTheGroupThatAParameterLeaves) {
  for (const bool in_front : {false, true}) {
    OneParam stays(1), leaves(2), late(3);
    FusedAdam optimizer(std::vector<at::Tensor>{stays.param, leaves.param}, FusedAdamOptions(0.1));
    step_with(optimizer, {&stays, &leaves}, 2);
    optimizer.add_param_group(group_like_first(optimizer, late));
    step_with(optimizer, {&stays, &leaves, &late}, 1);
    auto& groups = optimizer.param_groups();
    groups[0].params().pop_back();
    groups.insert(in_front ? groups.begin() : groups.end(), group_like_first(optimizer, leaves));
    const std::vector<int64_t> counts = in_front ? std::vector<int64_t>{0, 3, 1} : std::vector<int64_t>{3, 1, 0};
    for (size_t group = 0; group < 3; ++group) EXPECT_EQ(optimizer.steps_taken(group), counts[group]) << group << in_front;
    step_with(optimizer, {&stays, &leaves, &late}, 1);
    for (size_t group = 0; group < 3; ++group) EXPECT_EQ(optimizer.steps_taken(group), counts[group] + 1) << group << in_front;
  }
}

// As in Gaussian splatting: new leaves with the states of the old ones. In between the group is empty.
TEST(CountsOfGroups, StayWithTheGroupWhoseParametersAreAllReplaced) {
  OneParam old(1), replacement(2);
  FusedAdam optimizer(std::vector<at::Tensor>{old.param}, FusedAdamOptions(0.1));
  step_with(optimizer, {&old}, 3);
  auto of_old = std::move(optimizer.state().at(old.param.unsafeGetTensorImpl()));
  optimizer.state().erase(old.param.unsafeGetTensorImpl());
  auto& params = optimizer.param_groups()[0].params();
  params.clear();
  EXPECT_EQ(optimizer.steps_taken(), 3);
  optimizer.step();
  EXPECT_EQ(optimizer.steps_taken(), 3) << "an empty group takes no step";
  optimizer.state()[replacement.param.unsafeGetTensorImpl()] = std::move(of_old);
  params.push_back(replacement.param);
  step_with(optimizer, {&replacement}, 1);
  EXPECT_EQ(optimizer.steps_taken(), 4);
}

TEST(CountsOfGroups, StayWithTheGroupWhoseParametersAndOptionsAreReplacedAtOnce) {
  for (const bool with_state : {true, false}) {
    OneParam old(1), replacement(2);
    FusedAdam optimizer(std::vector<at::Tensor>{old.param}, FusedAdamOptions(0.1));
    step_with(optimizer, {&old}, 3);
    auto of_old = std::move(optimizer.state().at(old.param.unsafeGetTensorImpl()));
    optimizer.state().erase(old.param.unsafeGetTensorImpl());
    if (with_state) optimizer.state()[replacement.param.unsafeGetTensorImpl()] = std::move(of_old);
    optimizer.param_groups()[0] = group_like_first(optimizer, replacement);
    EXPECT_EQ(optimizer.steps_taken(), with_state ? 3 : 0);
    step_with(optimizer, {&replacement}, 1);
    EXPECT_EQ(optimizer.steps_taken(), with_state ? 4 : 1);
  }
}

// The groups have changed although none of the old parameters is left.
TEST(GroupParameters, ThatReplaceAllOthersAreChecked) {
  OneParam first(1), second(2), replacement(3);
  FusedAdam optimizer(std::vector<at::Tensor>{first.param}, FusedAdamOptions(0.1));
  optimizer.add_param_group(group_like_first(optimizer, second));
  step_with(optimizer, {&first, &second}, 1);
  for (auto& group : optimizer.param_groups()) group.params()[0] = replacement.param;
  replacement.next_grad();
  EXPECT_THROW(optimizer.step(), c10::ValueError);
}

TEST(StatesOfParameters, GoWithTheParameters) {
  OneParam body(1), next(3);
  auto head = std::make_unique<OneParam>(2);
  FusedAdam optimizer({body.param, head->param}, FusedAdamOptions(0.1));
  step_with(optimizer, {&body, head.get()}, 2);
  EXPECT_EQ(optimizer.state().size(), 2U);
  optimizer.param_groups()[0].params()[1] = next.param;
  step_with(optimizer, {&body, &next}, 1);
  EXPECT_EQ(optimizer.state().size(), 3U) << "the program may put a parameter that it holds back";
  head.reset();
  optimizer.add_param_group(group_like_first(optimizer, *std::make_unique<OneParam>(4)));
  EXPECT_EQ(optimizer.state().size(), 2U);
}

struct TwoLayersImpl : torch::nn::Module {
  torch::nn::Linear body = register_module("body", torch::nn::Linear(4, 4)),
                    head = register_module("head", torch::nn::Linear(4, 2));
  at::Tensor forward(const at::Tensor& x) { return head(body(x)); }
};
AMP_MODULE(TwoLayers);

// Where a group with masters is taken out, the states of its masters go to the model's parameters.
TEST(StatesOfParameters, GoWithTheParametersUnderMasters) {
  namespace amp = apex::amp;
  TwoLayers model;
  FusedAdam adam({OptimizerParamGroup(model->body->parameters()), OptimizerParamGroup(model->head->parameters())},
                 FusedAdamOptions(0.1));
  auto [net, opt] = amp::initialize(model, adam, "O5", amp::InitializeOptions().verbosity(0));
  { amp::scale_loss(net->forward(values({3, 4}, 1)).square().sum(), opt).backward(); }
  opt.step();
  EXPECT_EQ(opt.state().size(), 4U);
  opt.param_groups().pop_back();
  torch::nn::Linear next(4, 2);
  next->to(torch::kBFloat16);
  model->head = model->replace_module("head", next);
  opt.add_param_group(OptimizerParamGroup(model->head->parameters(), std::make_unique<FusedAdamOptions>(0.1)));
  EXPECT_EQ(opt.state().size(), 2U);
}

TEST(StatesOfParameters, ReturnWithAGroupThatIsAddedAgain) {
  OneParam body(1), head(2);
  FusedAdam optimizer(std::vector<at::Tensor>{body.param}, FusedAdamOptions(0.1));
  optimizer.add_param_group(group_like_first(optimizer, head));
  step_with(optimizer, {&body, &head}, 2);
  const auto* state = optimizer.state().at(head.param.unsafeGetTensorImpl()).get();
  optimizer.param_groups().pop_back();
  step_with(optimizer, {&body}, 1);
  optimizer.add_param_group(group_like_first(optimizer, head));
  EXPECT_EQ(optimizer.state().at(head.param.unsafeGetTensorImpl()).get(), state);
  EXPECT_THROW(optimizer.add_param_group(group_like_first(optimizer, head)), c10::ValueError);
  EXPECT_EQ(optimizer.state().at(head.param.unsafeGetTensorImpl()).get(), state);
  step_with(optimizer, {&body, &head}, 1);
  EXPECT_EQ(optimizer.steps_taken(0), 4);
  EXPECT_EQ(optimizer.steps_taken(1), 3);
}

// A group that was taken out is known by the parameters that it had last, however often the others change.
TEST(CountsOfGroups, ReturnWithAParameterThatJoinedTheGroupLater) {
  OneParam body(1), first(2), second(3), other(4);
  FusedAdam optimizer(std::vector<at::Tensor>{body.param}, FusedAdamOptions(0.1));
  optimizer.add_param_group(group_like_first(optimizer, first));
  step_with(optimizer, {&body, &first}, 2);
  auto& groups = optimizer.param_groups();
  groups[1].params().push_back(second.param);
  step_with(optimizer, {&body, &first, &second}, 1);
  groups[1].params().erase(groups[1].params().begin());
  const OptimizerParamGroup out = groups.back();
  groups.pop_back();
  step_with(optimizer, {&body}, 1);
  optimizer.add_param_group(group_like_first(optimizer, other));
  step_with(optimizer, {&body, &other}, 1);
  groups.push_back(out);
  step_with(optimizer, {&body, &other, &second}, 1);
  EXPECT_EQ(optimizer.steps_taken(0), 6);
  EXPECT_EQ(optimizer.steps_taken(1), 2);
  EXPECT_EQ(optimizer.steps_taken(2), 4);
}

TEST(GroupOptions, ValuesOfKnownGroupsAreCheckedByTheStep) {
  const auto params = make_params(1);
  FusedAdam optimizer(params, FusedAdamOptions(0.1));
  auto& options = static_cast<FusedAdamOptions&>(optimizer.param_groups()[0].options());
  for (const bool first : {true, false}) {
    set_grads(params, 2);
    const auto before = copies_of(params);
    const auto refused = [&] { return message_of<c10::ValueError>([&] { optimizer.step(); }); };
    options.betas({0.9, 1.0});
    EXPECT_NE(refused().find("Group 0 of FusedAdam: betas must be in [0, 1), got (0.9, 1)"), std::string::npos) << first;
    options.betas({0.9, 0.999}).weight_decay(NAN);
    EXPECT_NE(refused().find("Group 0 of FusedAdam: weight_decay must not be negative"), std::string::npos) << first;
    options.weight_decay(0);
    EXPECT_TRUE(same_bytes(params, before)) << first;
    optimizer.step();
    EXPECT_FALSE(same_bytes(params, before)) << first;
  }
}

TEST(GroupOptions, ReadAsAnotherClassAreNaN) {
  FusedAdamOptions options(0.1);
  EXPECT_TRUE(std::isnan(read_as(options, lr_of_adam)));
  EXPECT_TRUE(std::isnan(read_as(options, momentum_of_sgd)));
}

// A write to a member that LibTorch adds behind the guard would change an option of ours.
TEST(GroupOptions, OfLibTorchEndWithinTheGuard) {
  constexpr size_t kGuarded = sizeof(apex::optimizers::detail::GuardedOptions);
  EXPECT_LE(sizeof(torch::optim::SGDOptions), kGuarded);
  EXPECT_LE(sizeof(torch::optim::AdamOptions), kGuarded);
  EXPECT_LE(sizeof(torch::optim::AdamWOptions), kGuarded);
  EXPECT_LE(sizeof(torch::optim::RMSpropOptions), kGuarded);
  EXPECT_LE(sizeof(torch::optim::AdagradOptions), kGuarded);
}

TEST(GroupOptions, WrittenAsAnotherClassInTheHandleOrTheOriginalAreErrors) {
  for (const bool in_original : {false, true}) {
    torch::nn::Linear net(3, 2);
    FusedAdam original(net->parameters(), FusedAdamOptions(0.1));
    auto handles = apex::amp::initialize(net, original, "O2", apex::amp::InitializeOptions().verbosity(0));
    auto& [model, opt] = handles;
    torch::optim::Optimizer& handle = opt;
    apex::amp::scale_loss(model->forward(values({4, 3}, 2)).square().mean(), opt).backward();
    const auto before = copies_of(handle.param_groups()[0].params());
    auto& written = in_original ? original.param_groups()[0] : handle.param_groups()[0];
    write_as(written.options(), lr_of_adam, 0.2);
    const std::string message = message_of<c10::TypeError>([&] { handle.step(); });
    EXPECT_NE(message.find("Group 0 of FusedAdam: the options were written after a cast"), std::string::npos)
        << in_original << message;
    EXPECT_TRUE(same_bytes(before, copies_of(handle.param_groups()[0].params())));
  }
}

TEST(GroupOptions, WrittenAsAnotherClassInsideLARCAreErrors) {
  const auto params = make_params(1);
  FusedSGD original(params, FusedSGDOptions(0.1));
  apex::parallel::LARC<FusedSGD> larc(original);
  write_as(original.param_groups()[0].options(), lr_of_sgd, 0.2);
  set_grads(params, 2);
  const auto before = copies_of(params);
  EXPECT_THROW(larc.step(), c10::TypeError);
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
}

TEST(GroupOptions, OfMuonWrittenAsAnotherClassAreErrors) {
  const std::vector<at::Tensor> params = {values({4, 3}, 1).requires_grad_()};
  Muon optimizer(params);
  write_as(optimizer.param_groups()[0].options(), lr_of_sgd, 0.2);
  set_grads(params, 2);
  const auto before = copies_of(params);
  EXPECT_THROW(optimizer.step(), c10::TypeError);
  EXPECT_TRUE(same_bytes(before, copies_of(params)));
}

TEST(GroupOptions, OfAnotherClassAreTypeErrors) {
  const std::string message = refusal<FusedAdam, c10::TypeError>(torch::optim::AdamOptions(0.1));
  EXPECT_NE(message.find("Group 1 of FusedAdam has options of the class torch::optim::AdamOptions"), std::string::npos)
      << message;
  EXPECT_FALSE((refusal<FusedLAMB, c10::TypeError>(FusedMixedPrecisionLambOptions(0.1)).empty()));
}

TEST(GroupOptions, AcceptTheOptimizersValidValues) {
  using Value = c10::ValueError;
  EXPECT_NE((refusal<FusedAdam, Value>(FusedAdamOptions(-0.5))).find("Group 1 of FusedAdam: lr must not be negative, got -0.5"),
            std::string::npos);
  EXPECT_NE((refusal<FusedAdam, Value>(FusedAdamOptions().betas({1.0, 0.9}))).find("betas must be in [0, 1)"),
            std::string::npos);
  EXPECT_NE((refusal<FusedAdam, c10::Error>(FusedAdamOptions().amsgrad(true))).find("AMSGrad"), std::string::npos);
  EXPECT_NE((refusal<FusedSGD, Value>(FusedSGDOptions(0.1).momentum(0.9).dampening(0.5).nesterov(true))).find("nesterov"),
            std::string::npos);
  EXPECT_NE((refusal<FusedAdagrad, Value>(FusedAdagradOptions().eps(-1))).find("eps"), std::string::npos);
  EXPECT_NE((refusal<FusedLion, Value>(FusedLionOptions().betas({0.9, -1}))).find("Group 1 of FusedLion: betas"),
            std::string::npos);
  EXPECT_NE((refusal<FusedNovoGrad, Value>(FusedNovoGradOptions().weight_decay(-1))).find("weight_decay"), std::string::npos);
  EXPECT_NE((refusal<FusedMixedPrecisionLamb, Value>(FusedMixedPrecisionLambOptions().step(-1))).find("step"),
            std::string::npos);
}

}  // namespace
}  // namespace test
