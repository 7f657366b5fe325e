#pragma once

#include "kernels/cuda/sum_pass.h"
#include "kernels/cuda/updates.h"
#include "kernels/rules/norms.h"

// The Ops that take norms of tensors. What an Op is: update_pass.h.
namespace apex::kernels::cuda {

// Where norms go: of all elements, and of each tensor by index. nullptr: nowhere.
struct NormOutputs {
  float* total;
  float* each;
  int32_t* found_inf;  // raised if the total is not finite
};

// What sums by tensor become: their roots for L2 norms, what they are for largest magnitudes.
template <bool kL2>
DEVICE_BODY float as_norm(double sum) {
  return kL2 ? rules::root_of_sum(sum) : rules::as_float(sum);
}

// Turns sums `s` of each tensor into norms.
template <bool kL2, class Block>
DEVICE_BODY void write_each(const Block& block, const Table& table, int s, float* norms) {
  block.each_thread([&](int thread) {
    for (int64_t i = thread; i < table.count; i += block.threads()) norms[i] = as_norm<kL2>(block.read(table.row_sums(s) + i));
  });
}

// Without outputs, sums are left in the table.
template <bool kL2>
struct Norms {
  static constexpr bool kTakesDoubles = true;
  using Fold = std::conditional_t<kL2, rules::Sum, rules::Largest>;

  double factor;
  const float* factor_on_device;  // in its place, if there is one
  NormOutputs outputs;

  struct Prepared {
    double factor;

    template <class Real>
    DEVICE_BODY auto rule(const Row&) const {
      if constexpr (kL2) {
        return rules::SumOfSquares<Real>{static_cast<Real>(factor)};
      } else {
        return rules::MaxMagnitude<Real>{};
      }
    }
  };

  DEVICE_BODY bool stopped() const { return false; }
  DEVICE_BODY Prepared prepared() const { return {factor_on_device != nullptr ? *factor_on_device : factor}; }
  DEVICE_BODY bool finishes() const { return outputs.total != nullptr; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    const float total = as_norm<kL2>(ordered_fold<Fold>(block, table.row_sums(0), table.count));
    block.each_thread([&](int thread) {
      if (thread != 0) return;
      *outputs.total = total;
      if (!is_finite(total)) raise(outputs.found_inf);
    });
    if (outputs.each != nullptr) write_each<kL2>(block, table, 0, outputs.each);
  }
};

// The running norms that NovoGrad takes its step with. If one is not finite, the flag that is to stop the step is raised.
template <bool kL2>
struct NovoGradNorms : Controlled<rules::NovoGradSettings> {
  const float* running;
  float* next;

  DEVICE_BODY auto prepared() const {
    if constexpr (kL2) {
      return Same<rules::SumOfSquares<float>>{{rules::as_float(now().grad_scale)}};
    } else {
      return Same<rules::MaxMagnitude<float>>{{}};
    }
  }

  DEVICE_BODY bool finishes() const { return true; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    const rules::NovoGradSettings current = now();
    const float scale = rules::as_float(current.grad_scale);
    block.each_thread([&](int thread) {
      for (int64_t i = thread; i < table.count; i += block.threads()) {
        float norm = as_norm<kL2>(block.read(table.row_sums(0) + i));
        if constexpr (!kL2) norm = rules::multiply(norm, scale < 0 ? -scale : scale);
        next[i] = rules::next_norm(current, running[i], norm);
        if (!is_finite(next[i])) raise(control.found_inf);
      }
    });
  }
};

// Writes each tensor's norms beside the update.
struct LambStage1 : Controlled<rules::LambSettings> {
  const float* global_grad_norm;
  float* param_norms;
  float* update_norms;

  DEVICE_BODY ByDtype<rules::LambStage1, 4> prepared() const {
    const double norm = global_grad_norm != nullptr ? *global_grad_norm : 0.0;
    return {rules::lamb_stage_1(now(), norm, true), rules::lamb_stage_1(now(), norm, false)};
  }

  DEVICE_BODY bool finishes() const { return true; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    write_each<true>(block, table, 0, param_norms);
    write_each<true>(block, table, 1, update_norms);
    block.each_thread([&](int thread) {
      if (thread == 0 && control.step != nullptr) ++*control.step;
    });
  }
};

// Norms of both lists of LARC in one pass.
struct LarcNorms : Controlled<rules::LarcSettings> {
  float* grad_norms;
  float* param_norms;

  DEVICE_BODY Same<rules::PairOfSquares> prepared() const { return {}; }
  DEVICE_BODY bool finishes() const { return true; }

  template <class Block>
  DEVICE_BODY void finish(const Block& block, const Table& table) const {
    write_each<true>(block, table, 0, grad_norms);
    write_each<true>(block, table, 1, param_norms);
  }
};

}  // namespace apex::kernels::cuda
