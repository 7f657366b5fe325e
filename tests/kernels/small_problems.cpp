#include "tests/kernels/small_problems.h"

#include <cstring>

#include "kernels/rules/quantized.h"
#include "kernels/rules/remainder.h"

namespace kernels_test {

namespace kernels = apex::kernels;
namespace rules = apex::kernels::rules;

std::vector<Case> cases_with_remainders() {
  std::vector<Case> chosen;
  for (const Case& each : cases()) {
    // Norms that a caller computes are those of the bfloat16.
    if (!each.writes_grads && each.name != "LarsGivenNorms") chosen.push_back(each);
  }
  return chosen;
}

namespace {

template <class Remainder>
void split_into(const at::Tensor& values, at::Tensor& param, at::Tensor& remainder) {
  for (int64_t i = 0; i < values.numel(); ++i) {
    const auto parts = rules::split<Remainder>(values.const_data_ptr<float>()[i]);
    std::memcpy(static_cast<uint16_t*>(param.mutable_data_ptr()) + i, &parts.rounded, sizeof parts.rounded);
    remainder.mutable_data_ptr<Remainder>()[i] = parts.remainder;
  }
}

}  // namespace

Problem split_problem(const Problem& exact, at::ScalarType remainder, int64_t offset) {
  Problem parts = exact.copy();
  parts.models.clear();
  for (at::Tensor& param : parts.params) {
    const auto place = [&](at::ScalarType dtype) {
      return at::empty({param.numel() + offset}, dtype).narrow(0, offset, param.numel());
    };
    at::Tensor upper = place(at::kBFloat16);
    parts.models.push_back(place(remainder));
    remainder == at::kShort ? split_into<int16_t>(param, upper, parts.models.back())
                            : split_into<int8_t>(param, upper, parts.models.back());
    param = upper;
  }
  return parts;
}

void make_tiny(Problem& problem) {
  constexpr double kTiny = 0x1p-70;
  for (const Tensors* list : {&problem.grads, &problem.first}) {
    for (const at::Tensor& tensor : *list) tensor.mul_(kTiny);
  }
  for (const at::Tensor& tensor : problem.second) tensor.mul_(kTiny * kTiny);
}

Tensors Coded::all() const {
  Tensors tensors;
  for (const Tensors* list : {&grads, &params, &means, &squares, &models})
    tensors.insert(tensors.end(), list->begin(), list->end());
  return tensors;
}

Coded Coded::copy() const {
  return {copies_of(grads), copies_of(params), copies_of(means), copies_of(squares), copies_of(models)};
}

namespace {

// Codes of a tensor of random moments: zeros behind the last element, and scales of several sizes.
at::Tensor random_codes(int64_t numel, bool squares) {
  const at::Tensor codes = at::zeros({rules::quantized_bytes(numel)}, at::kByte);
  auto* const bytes = codes.mutable_data_ptr<uint8_t>();
  const at::Tensor random = at::randint(squares ? 1 : 0, 255, {numel}, at::kInt);
  for (int64_t i = 0; i < numel; ++i)
    bytes[i] = static_cast<uint8_t>(random[i].item<int>() == 128 ? 127 : random[i].item<int>());
  for (int64_t g = 0; g < rules::group_count(numel); ++g) {
    bytes[rules::group_count(numel) * rules::kGroup + g] = static_cast<uint8_t>(120 + g % 5);
  }
  return codes;
}

}  // namespace

Coded make_coded(Kind kind, at::ScalarType grad, const std::vector<int64_t>& sizes) {
  Coded made;
  const bool splits = kind == Kind::split16 || kind == Kind::split8;
  const bool has_16_bits = splits || kind == Kind::rounded;
  const at::ScalarType param = !has_16_bits ? at::kFloat : splits || grad == at::kFloat ? at::kBFloat16 : grad;
  for (const int64_t size : sizes) {
    made.grads.push_back(random_values(size, grad));
    made.params.push_back(random_values(size, param));
    made.means.push_back(random_codes(size, /*squares=*/false));
    made.squares.push_back(random_codes(size, /*squares=*/true));
    if (kind == Kind::copied) made.models.push_back(at::zeros({size}, at::kBFloat16));
    if (splits) made.models.push_back(at::randint(-100, 100, {size}, kind == Kind::split16 ? at::kShort : at::kChar));
  }
  return made;
}

Coded part_of(const Coded& whole, size_t index, int64_t begin, int64_t size) {
  const auto values = [&](const Tensors& list) {
    return list.empty() ? Tensors() : Tensors{list[index].narrow(0, begin, size).clone()};
  };
  const auto codes = [&](const Tensors& list) {
    const int64_t groups = rules::group_count(size), first = begin / rules::kGroup;
    const int64_t exponents = rules::group_count(whole.params[index].numel()) * rules::kGroup;
    return Tensors{
        at::cat({list[index].narrow(0, begin, groups * rules::kGroup), list[index].narrow(0, exponents + first, groups)})};
  };
  return {values(whole.grads), values(whole.params), codes(whole.means), codes(whole.squares), values(whole.models)};
}

kernels::AdamSettings adam_settings(int64_t step) {
  kernels::AdamSettings settings;
  settings.lr = 0.01;
  settings.weight_decay = 0.1;
  settings.step = step;
  return settings;
}

void adam(const Coded& on, const kernels::AdamSettings& settings, const at::Tensor& found_inf) {
  kernels::StepTensors tensors;
  tensors.found_inf = found_inf;
  kernels::multi_tensor_adam(on.grads, on.params, on.means, on.squares, on.models, settings, tensors);
}

void adam(const Coded& on, int64_t step, const at::Tensor& found_inf) { adam(on, adam_settings(step), found_inf); }

}  // namespace kernels_test
