// What all threads of a process share: each test lets threads read and write one part of it at once, for ThreadSanitizer.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>
#include <apex_cpp/activation_checkpoint.h>
#include <apex_cpp/amp/casts/cast_rules.h>
#include <apex_cpp/amp/casts/custom_functions.h>
#include <apex_cpp/amp/casts/operator_slot.h>
#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/checkpoint/parts.h>
#include <apex_cpp/amp/comparison/measurement.h>
#include <apex_cpp/amp/doctor/step_observer.h>
#include <apex_cpp/amp/float8/history.h>
#include <apex_cpp/amp/policy.h>
#include <apex_cpp/amp/scaling/overflow_report.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/statistics.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/lr_scheduler.h>
#include <apex_cpp/parallel/sync_batch_norm/process_group_mark.h>
#include "kernels/float8/float8.h"
#include "opt_levels/resolve.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "tests/amp/optimizers.h"

namespace apex::test {
namespace {

using torch::Tensor;
using Call = std::function<void()>;

/// Makes each call many times in a thread of its own. The threads begin together.
void at_once(const std::vector<Call>& calls, int times = 20) {
  std::atomic<size_t> ready{0};
  std::vector<std::thread> threads;
  for (const Call& call : calls) {
    threads.emplace_back([&] {
      ++ready;
      while (ready < calls.size()) std::this_thread::yield();
      for (int i = 0; i < times; ++i) call();
    });
  }
  for (auto& thread : threads) thread.join();
}

/// A custom function, for the search for such functions in a graph.
struct Twice : torch::autograd::Function<Twice> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list grads) {
    return {grads[0] * 2};
  }
};

struct GuardedNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor h = Twice::apply(fc1(x));
    const amp::disable_casts off;
    return fc2(h.to(torch::kFloat));
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(6, 6)),
                    fc2 = register_module("fc2", torch::nn::Linear(6, 3));
};
TORCH_MODULE(GuardedNet);

template <class Net>
Call set_up_and_train(const std::string& level) {
  return [level] {
    Net model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale("dynamic"));
    train_step(net, opt, torch::ones({4, 6}));
  };
}

class SharedState : public AmpTest {};

TEST_F(SharedState, SetUpsAtEveryLevel) {
  at_once({set_up_and_train<GuardedNet>("O1"), set_up_and_train<GuardedNet>("O4"), set_up_and_train<Mlp>("O2"),
           set_up_and_train<Mlp>("O5")},
          6);
}

TEST_F(SharedState, RegistrationsOfOneFunction) {
  const Call change = [] {
    amp::register_float_function("aten::sigmoid");
    amp::unregister_function("aten::sigmoid");
  };
  at_once({change, change, set_up_and_train<Mlp>("O1"), [] { torch::sigmoid(torch::ones({2})); }}, 6);
}

TEST_F(SharedState, TheGlobalPolicy) {
  const auto before = amp::global_policy();
  const Call read = [] { EXPECT_FALSE(amp::global_policy().name().empty()); };
  at_once({[] { amp::set_global_policy(amp::Policy("mixed_bfloat16")); },
           [] { amp::set_global_policy(amp::Policy("float32")); }, read, read});
  amp::set_global_policy(before);
}

TEST_F(SharedState, TheExchangeOfOverflows) {
  const auto change = [] {
    const auto none = [](bool) { return std::vector<int>{}; };
    const auto first = amp::detail::begin_overflow_exchange(none), second = amp::detail::begin_overflow_exchange(none);
    amp::detail::end_overflow_exchange(first);
    amp::detail::end_overflow_exchange(second);
  };
  at_once({change, change, set_up_and_train<Mlp>("O2"), set_up_and_train<Mlp>("O1")}, 6);
}

// In this test and some below each thread calls one function alone: another function's lock would order its calls, too.
TEST_F(SharedState, TheExchangeInForce) {
  const amp::LossScaler scaler("dynamic", 1.0);
  std::vector<std::shared_ptr<const amp::detail::OverflowExchange>> begun;
  at_once({[&] { begun.push_back(amp::detail::begin_overflow_exchange([](bool) { return std::vector<int>{}; })); },
           [] { amp::detail::end_overflow_exchange(nullptr); },
           [&] { EXPECT_TRUE(amp::detail::ranks_with_overflow(scaler, false).empty()); }});
  for (const auto& exchange : begun) amp::detail::end_overflow_exchange(exchange);
}

TEST_F(SharedState, OneWeightCache) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet());
  const Call forward = [&net = net] { net->forward(features()); };
  at_once({forward, forward, [] { amp::clear_cast_cache(); }, forward});
}

TEST_F(SharedState, TheClonesOfAModel) {
  torch::nn::Linear model(6, 3);
  auto net = amp::initialize(model, "O1", quiet());
  const Call clone_and_forward = [&] {
    const auto clone = std::dynamic_pointer_cast<amp::Amped<torch::nn::LinearImpl>>(net->clone());
    ASSERT_TRUE(clone);
    EXPECT_EQ(clone->forward(features()).scalar_type(), torch::kHalf);
  };
  at_once({clone_and_forward, clone_and_forward});
}

TEST_F(SharedState, TheEntriesOfAWeightCache) {
  amp::detail::WeightCache cache;
  const Tensor weights[] = {torch::ones({2}, torch::requires_grad()), torch::ones({2}, torch::requires_grad())};
  const auto keep_and_cast = [&](const Tensor& weight) {
    return [&] {
      bool hit = false;
      cache.keep(weight);
      EXPECT_EQ(cache.cast(weight, torch::kHalf, 0, hit, [] { return true; }).scalar_type(), torch::kHalf);
      EXPECT_LE(cache.size(), 2u);
    };
  };
  at_once({keep_and_cast(weights[0]), keep_and_cast(weights[1]), [&] { cache.clear(); }});
}

TEST_F(SharedState, TheTableOfOperators) {
  std::atomic<int> next{0};
  at_once({[&] { amp::detail::operator_slot(("shared_state::operator" + std::to_string(++next)).c_str(), ""); },
           [] { EXPECT_GT(amp::detail::num_operator_slots(), 0u); }});
}

TEST_F(SharedState, TheNodesOfScopes) {
  amp::detail::NodeRanges ranges;
  const Tensor x = torch::ones({2}, torch::requires_grad()), of_no_scope = x * 2;
  at_once({[&] {
             const auto first = amp::detail::NodeRanges::next_node();
             const Tensor of_scope = x * 2;
             ranges.add(first);
           },
           [&] { EXPECT_FALSE(ranges.has(*of_no_scope.grad_fn())); }});
}

// Of losses whose graphs have none: the search for others takes a lock of its own.
TEST_F(SharedState, TheLossesWhoseCustomFunctionsWereLookedFor) {
  amp::detail::CustomFunctions functions;
  const Tensor loss = torch::ones({2}, torch::requires_grad()).sum();
  const auto look_from = [&](int64_t first_id) {
    return [&, loss_id = first_id]() mutable { functions.look(loss, loss_id++); };
  };
  at_once({look_from(0), look_from(1000)});
}

TEST_F(SharedState, TheNewestCasts) {
  const auto rules = [] { return amp::detail::CastRules::from(opt_levels::resolve("O1"), nullptr); };
  const Call begin_and_end = [&] {
    const auto own = rules();
    amp::detail::cast_on_this_thread(own);
    amp::detail::release_threads(own);
  };
  // Threads without rules of their own ask whether there are newest ones, and take them. Each is alone with its question: the
  // lock of one would order the other's reading, too.
  const Call ask = [] { const amp::detail::BackwardScope scope(/*rules=*/nullptr, /*creates_graph=*/false); };
  const Call take = [] { amp::detail::rules_in_force(amp::detail::thread_casts()); };
  at_once({begin_and_end, begin_and_end, ask, take});
}

TEST_F(SharedState, InitializingAndLoadingWhileOthersTrainTheirOwnModels) {
  const auto train = [] {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().loss_scale(8.0));
    train_step(net, opt, features());
  };
  const auto load = [] {
    Mlp model, other;
    auto net = amp::initialize(model, "O2", quiet());
    std::stringstream file;
    torch::save(other, file);
    torch::load(net, file);
  };
  at_once({train, train, load});
}

TEST_F(SharedState, TheSessionsThatCastWeights) {
  Mlp model, another;
  auto net = amp::initialize(model, "O2", quiet());
  const auto session = amp::detail::current_session();
  at_once({[&] { amp::detail::remember_casts(*another, session); }, [] { amp::detail::forget_dead_tensors(); },
           [&] { EXPECT_TRUE(amp::detail::was_cast_by_amp(model->fc1->weight)); },
           [&] { EXPECT_EQ(amp::detail::session_that_cast(model->fc1->weight), session); }});
}

TEST_F(SharedState, TheNewestSessionAndItsNames) {
  Mlp model;
  auto net = amp::initialize(model, "O0", quiet());
  const auto session = amp::detail::current_session();
  const Call change = [&] {
    amp::detail::set_current_session(nullptr);
    amp::detail::set_current_session(session);
  };
  const Call read_session = [&] {
    const auto newest = amp::detail::current_session();
    EXPECT_TRUE(!newest || newest == session);
  };
  const Call read_names = [&] {
    const auto newest = amp::detail::newest_parameter_names();
    EXPECT_TRUE(!newest || newest == session->parameter_names);
  };
  at_once({change, read_session, read_names});
}

/// Stands for what reduces gradients over processes.
struct NoReduction : amp::detail::GradSync {
  std::vector<int> ranks_with_nonfinite(const Tensor&) const override { return {}; }
  void take_maximum(const Tensor&) const override {}
};

TEST_F(SharedState, TheReductionsOfGradients) {
  const std::vector<Tensor> params{torch::ones({2})};
  const std::shared_ptr<amp::detail::GradSync> sync = std::make_shared<NoReduction>(),
                                               another = std::make_shared<NoReduction>();
  amp::detail::set_grad_sync(params, sync);
  at_once({[&] { amp::detail::set_grad_sync(params, sync); }, [&] { amp::detail::drop_grad_sync(params, *another); },
           [&] { EXPECT_EQ(amp::detail::grad_sync_of(params[0]).get(), sync.get()); }},
          200);
  amp::detail::drop_grad_sync(params, *sync);
  EXPECT_EQ(amp::detail::grad_sync_of(params[0]).get(), nullptr);
}

TEST_F(SharedState, TheRatesFromBeforeSchedulers) {
  const Call schedule = [] {
    const Tensor weight = torch::ones({2}, torch::requires_grad());
    torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(0.5));
    const lr_scheduler::ConstantLR halved(optimizer, 0.5, 3);
    EXPECT_EQ(halved.get_last_lr().at(0), 0.25);
  };
  at_once({schedule, schedule});
}

/// Expects that the call waits until `release` has run. For what LibTorch reads and writes: ThreadSanitizer does not watch it.
void expect_wait(const Call& call, const Call& release) {
  std::atomic<bool> done{false};
  std::thread other([&] {
    call();
    done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(done);
  release();
  other.join();
}

/// Expects that the call waits for the lock under which LibTorch draws random numbers.
void expect_wait(const Call& call) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::unique_lock<std::mutex> drawing(generator.mutex());
  expect_wait(call, [&] { drawing.unlock(); });
}

TEST_F(SharedState, AGeneratorIsReadOnceItIsFree) {
  expect_wait([] { amp::detail::generator_states(); });
}

TEST_F(SharedState, AGeneratorIsReadAndRestoredOnceItIsFree) {
  const auto states = amp::detail::generator_states();
  expect_wait([&] { amp::detail::check_generator_states(states); });
  expect_wait([&] {
    std::vector<std::string> notes;
    amp::detail::restore_generator_states(states, notes);
  });
}

// Gradients of earlier calls arrive on other threads while the step makes further calls, also of a custom function.
TEST_F(SharedState, TheCallsOfAnObservedStep) {
  GuardedNet model;
  auto net = amp::initialize(model, "O0", quiet());
  for (int step = 0; step < 10; ++step) {
    const auto observer = std::make_shared<amp::detail::StepObserver>();
    observer->start();
    std::atomic<int> differentiating{2};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      Tensor loss = torch::zeros({});
      for (int k = 0; k < 20; ++k) loss = loss + net->forward(features()).square().mean();
      threads.emplace_back([&differentiating, loss] {
        loss.backward();
        --differentiating;
      });
    }
    while (differentiating > 0) net->forward(features());
    for (auto& thread : threads) thread.join();
    observer->stop();
    EXPECT_FALSE(observer->take().empty());
  }
}

// Gradients still arrive while the step ends.
TEST_F(SharedState, TheEndOfAnObservedStep) {
  const Tensor x = torch::ones({2});
  for (int step = 0; step < 20; ++step) {
    const auto observer = std::make_shared<amp::detail::StepObserver>();
    observer->start();
    x.tanh();
    std::thread other([&] {
      observer->add_output_grad(0, 0, x);
      observer->add_input_grad(0, 0, x);
    });
    observer->stop();
    other.join();
    EXPECT_EQ(observer->take().size(), 1u);
  }
}

TEST_F(SharedState, TheHistoryOfDelayedScaling) {
  amp::detail::Float8History history({"w"}, torch::kCPU, amp::detail::Float8Format::e5m2);
  const Tensor of_a_pass = torch::ones({1, 3}), saved = torch::ones({2, 1, 3});
  const Call end_pass = [&] { history.end_pass({0}, of_a_pass); };
  at_once({end_pass, end_pass, [&] { history.load(saved); }, [&] { EXPECT_EQ(history.state().dim(), 3); },
           [&] { EXPECT_TRUE(history.of("w").defined()); }});
}

/// Where a thread stays within LibTorch's operator that records a magnitude.
struct Recording {
  std::promise<void> begun, may_end;

  static Recording*& here() {
    static thread_local Recording* instance = nullptr;
    return instance;
  }
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
    if (!here() || std::strcmp(function.name(), "aten::maximum") != 0) return nullptr;
    Recording& stays = *std::exchange(here(), nullptr);
    stays.begun.set_value();
    stays.may_end.get_future().wait();
    return nullptr;
  }
};

// Of a weight that backward passes of several threads have in common.
TEST_F(SharedState, TheMagnitudesOfDelayedScaling) {
  using amp::detail::Float8Format;
  using amp::detail::Float8Role;
  amp::detail::Float8History history({"v", "w"}, torch::kCPU, Float8Format::e5m2);
  const Call record = [&] {
    round_delayed(torch::ones({2, 16}, torch::kBFloat16), Float8Role::activation, Float8Format::e4m3, history.of("w"));
  };
  const Tensor saved = torch::zeros({1, 2, 3});
  const std::vector<Call> calls = {record, [&] { history.largest({1}); }, [&] { history.forget_pass({1}); },
                                   [&] { history.load(saved); }};
  for (const Call& call : calls) {
    Recording recording;
    std::thread records([&] {
      Recording::here() = &recording;
      const auto callback = at::addThreadLocalCallback(at::RecordFunctionCallback(&Recording::on_start));
      record();
      at::removeCallback(callback);
      if (Recording::here()) recording.begun.set_value();  // without the operator, no call waits
    });
    recording.begun.get_future().wait();
    expect_wait(call, [&] { recording.may_end.set_value(); });
    records.join();
  }
}

TEST_F(SharedState, TheRecordsOfAWatch) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O0", quiet());
  const Call pass = [&net = net] {
    amp::watch watch;
    const Tensor loss = net->forward(features()).square().mean();
    std::thread other([&] { loss.backward(); });  // records gradients until the watch stops
    watch.stop();
    other.join();
    EXPECT_FALSE(watch.records().empty());
  };
  at_once({pass, pass}, 5);
}

TEST_F(SharedState, TheMarksOfBatchNorms) {
  const auto mark = [](double eps) {
    return [eps] {
      const double marked = parallel::detail::marked({eps, nullptr, true});
      EXPECT_EQ(parallel::detail::mark_of(marked)->eps, eps);
    };
  };
  const Call normalize = [] { torch::nn::BatchNorm1d(6)(torch::ones({4, 6})); };
  at_once({mark(0.25), mark(0.5), mark(0.5), normalize});
}

// A checkpoint reads the generator's state before the call, and sets it back after the repeated call.
TEST_F(SharedState, TheRandomNumberGenerator) {
  Call repeated = [] {};
  const auto draw = [&](const Tensor& x) {
    const Tensor drawn = x * torch::rand({2});
    repeated();
    return drawn;
  };
  const Tensor x = torch::ones({2}).requires_grad_();
  expect_wait([&] { checkpoint([](const Tensor& input) { return input * 2; }, x); });
  const Tensor loss = checkpoint(draw, x).sum();
  std::promise<void> has_drawn, locked;
  repeated = [&] {
    has_drawn.set_value();
    locked.get_future().wait();
  };
  std::thread backward([&] { loss.backward(); });
  has_drawn.get_future().wait();
  expect_wait([&] {
    locked.set_value();
    backward.join();
  });
}

TEST_F(SharedState, TheMemoryOfARun) {
  const auto memory = std::make_shared<amp::detail::TensorMemory>();
  const Call allocate = [&] {
    int block = 0;
    memory->reportMemoryUsage(&block, 8, 0, 0, torch::kCPU);
    memory->reportMemoryUsage(&block, -8, 0, 0, torch::kCPU);
  };
  at_once({allocate, allocate, [&] { EXPECT_GE(memory->live(), 0); }, [&] { EXPECT_GE(memory->take_peak(), 0); }});
  EXPECT_EQ(memory->live(), 0);
}

}  // namespace
}  // namespace apex::test
