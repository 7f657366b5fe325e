// The cost of listed operators at O4, compared with torch's CPU autocast and with no casts at all.
#include <ATen/Functions.h>
#include <apex_cpp/amp/autocast.h>
#include <apex_cpp/amp/session.h>

#include "casts.h"

namespace bench::casts {
namespace {

constexpr const char* kOpsGroup = "ops";

/// A call with casts, and the same work on tensors that need none, which runs without amp.
struct Comparison {
  std::string name;
  std::function<void()> call, plain;
};

std::vector<Comparison> comparisons() {
  const auto x32 = random({4, 4}, at::kFloat), y32 = random({4, 4}, at::kFloat);
  const auto x16 = x32.to(at::kBFloat16), y16 = y32.to(at::kBFloat16);
  const auto w32 = weight({4, 4}), bias32 = weight({4}), filter32 = weight({4, 4, 3, 3});
  const auto w16 = cast_leaf(w32), bias16 = cast_leaf(bias32), filter16 = cast_leaf(filter32);
  const auto image16 = random({1, 4, 4, 4}, at::kBFloat16), batch16 = random({2, 4, 4}, at::kBFloat16);
  const auto same = [](std::string name, const std::function<void()>& call) { return Comparison{std::move(name), call, call}; };
  return {
      same("relu, unlisted", [=] { at::relu(x16); }),
      same("mm, 16-bit", [=] { x16.mm(y16); }),
      same("matmul 3-d, 16-bit", [=] { batch16.matmul(batch16); }),
      same("linear, 16-bit", [=] { at::linear(x16, w16); }),
      same("conv2d, 16-bit", [=] { at::conv2d(image16, filter16); }),
      same("stack, 16-bit",
           [=] {
             at::stack({x16, y16});
           }),
      same("cat, 16-bit",
           [=] {
             at::cat({x16, y16});
           }),
      same("mse_loss, float", [=] { at::mse_loss(x32, y32); }),
      {"mm, both cast", [=] { x32.mm(y32); }, [=] { x16.mm(y16); }},
      {"linear, weight from cache", [=] { at::linear(x16, w32); }, [=] { at::linear(x16, w16); }},
      {"linear, weight and bias from cache", [=] { at::linear(x16, w32, bias32); }, [=] { at::linear(x16, w16, bias16); }},
      {"linear, input cast", [=] { at::linear(x32, w16); }, [=] { at::linear(x16, w16); }},
      {"conv2d, filter from cache", [=] { at::conv2d(image16, filter32); }, [=] { at::conv2d(image16, filter16); }},
      {"stack, promoted",
       [=] {
         at::stack({x16, y32});
       },
       [=] {
         at::stack({x32, y32});
       }},
      {"cat, promoted",
       [=] {
         at::cat({x16, y32});
       },
       [=] {
         at::cat({x32, y32});
       }},
      {"mse_loss, cast", [=] { at::mse_loss(x16, y16); }, [=] { at::mse_loss(x32, y32); }},
  };
}

Variant timed(std::string name, const std::function<void()>& call, int calls) {
  return {std::move(name), [call, calls] { return nanoseconds_when_warm(call, calls); }};
}

Result measure(Runner& runner, const Comparison& comparison, int threads) {
  const int calls = calls_in(comparison.call, kOpSeconds);
  const auto amp = timed("amp", comparison.call, calls);
  const Variant torch{"torch", [&, round = amp.round] {
                        const EngineOff off;
                        const apex::amp::autocast guard("cpu", at::kBFloat16);
                        return round();
                      }};
  const Variant plain{"plain", [&, round = timed("", comparison.plain, calls).round] {
                        const EngineOff off;
                        return round();
                      }};
  const auto medians = runner.medians(std::string(kOpsGroup) + "/" + comparison.name, threads, {plain, amp, torch}, kOpRepeats);
  return {kOpsGroup,
          comparison.name,
          threads,
          {{"plain ns", medians[0]},
           {"amp ns", medians[1]},
           {"torch ns", medians[2]},
           {"amp adds", medians[1] - medians[0]},
           {"torch adds", medians[2] - medians[0]},
           {"amp/torch", medians[1] / medians[2]}}};
}

}  // namespace

void run_ops(Runner& runner) {
  const auto all = comparisons();  // before switch_on: the weights made here must belong to the trained ones
  switch_on();
  for (const int threads : runner.thread_counts()) {
    for (const auto& each : all) {
      if (runner.wants(kOpsGroup, each.name)) runner.add(measure(runner, each, threads));
    }
  }
  apex::amp::reset();
  runner.print_group();
}

}  // namespace bench::casts
