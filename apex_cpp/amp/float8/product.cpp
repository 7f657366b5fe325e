#include <apex_cpp/amp/float8/product.h>

#include <apex_cpp/torch_compat/dispatch_keys.h>
#include "kernels/float8/float8.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>
#include <vector>

namespace apex::amp::detail {
namespace {

using kernels::Float8Blocks;

constexpr int64_t kTileOf128 = 128, kMxBlock = 32;

std::optional<at::Tensor> some_if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

Float8Format format_of(Float8Role role, const Float8Rounding& rounding) {
  return role == Float8Role::gradient ? rounding.gradients : Float8Format::e4m3;
}

// The blocks of a factor whose columns are summed over.
Float8Blocks blocks_of(Float8Role role, Float8Recipe recipe) {
  switch (recipe) {
    case Float8Recipe::block128:
      return {role == Float8Role::weight ? kTileOf128 : 1, kTileOf128};
    case Float8Recipe::mx:
      return {1, kMxBlock};
    default:
      return {};
  }
}

kernels::Float8Matrix rounded(const Float8Factor& factor, Float8Blocks blocks, const Float8Rounding& rounding) {
  const Float8Format format = format_of(factor.role, rounding);
  const kernels::Float8 as = kernels_format(format);
  if (rounding.delays.defined()) return {round_delayed(factor.values, factor.role, format, rounding.delays), as};
  return {kernels::round_to_float8(factor.values, as, blocks), as};
}

bool is_one(const c10::Scalar& factor) { return factor.toDouble() == 1; }

// Whether the device's FP8 instructions compute this sum. They add with fewer bits than float32 on some GPUs.
bool is_in_hardware(const Float8Sum& sum, const kernels::Float8Matrix& a, const kernels::Float8Matrix& b) {
  const at::Tensor &left = a.rounded.values, &right = b.rounded.values;
  const bool has_one_scale = a.rounded.scales.dim() == 1 && b.rounded.scales.dim() == 1;
  const bool is_bias = !sum.added.defined() || (is_one(sum.beta) && sum.added.sizes() == at::IntArrayRef(right.size(-1)));
  return has_one_scale && left.dim() == 2 && kernels::has_float8_products(left.device()) && is_bias && is_one(sum.alpha) &&
         left.numel() > 0 && right.numel() > 0 && left.size(1) % kFloat8Multiple == 0 && right.size(1) % kFloat8Multiple == 0 &&
         (a.format == kernels::Float8::e4m3 || b.format == kernels::Float8::e4m3);
}

at::Tensor product_of(const Float8Sum& sum, const Float8Factor& left, const Float8Factor& right,
                      const Float8Rounding& rounding) {
  const auto a = rounded(left, blocks_of(left.role, rounding.recipe), rounding);
  const auto b = rounded(right, blocks_of(right.role, rounding.recipe).transposed(), rounding);
  // The cast engine would take these calls for the program's own.
  const c10::impl::ExcludeDispatchKeyGuard off(torch_compat::kOffInside);
  if (is_in_hardware(sum, a, b)) return kernels::float8_mm(a, b, some_if_defined(sum.added));
  const at::Tensor &x = a.rounded.values, &y = b.rounded.values;
  const bool batched = x.dim() == 3;
  if (!sum.added.defined()) return batched ? at::bmm(x, y) : at::mm(x, y);
  return batched ? at::baddbmm(sum.added, x, y, sum.beta, sum.alpha) : at::addmm(sum.added, x, y, sum.beta, sum.alpha);
}

at::Tensor times(const at::Tensor& tensor, const c10::Scalar& factor) {
  return is_one(factor) ? tensor : at::mul(tensor, factor);
}

// Products of a backward pass with create_graph are not recorded in the history, and take their own scales.
Float8Rounding in_this_pass(const Float8Rounding& rounding) {
  return at::GradMode::is_enabled() ? Float8Rounding{rounding.recipe, rounding.gradients, {}} : rounding;
}

// Whether the matrices lie transposed in memory, as weights of linear layers do in a product.
bool lies_transposed(const at::Tensor& tensor) { return !tensor.is_contiguous() && tensor.mT().is_contiguous(); }

class Float8Product : public torch::autograd::Function<Float8Product> {
 public:
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  // Everything but the tensors.
  struct Rule {
    c10::Scalar beta, alpha;
    Float8Role of_a, of_b;
    Float8Rounding rounding;
  };

  // `added` is no undefined tensor: LibTorch takes those for inputs.
  static at::Tensor forward(Context* context, const std::optional<at::Tensor>& added, const at::Tensor& a, const at::Tensor& b,
                            const Rule& rule) {
    // Each factor's gradient needs the other factor.
    context->save_for_backward({b.requires_grad() ? a : at::Tensor(), a.requires_grad() ? b : at::Tensor()});
    context->saved_data["beta"] = rule.beta;
    context->saved_data["alpha"] = rule.alpha;
    context->saved_data["kinds"] =
        c10::List<int64_t>({static_cast<int64_t>(rule.of_a), static_cast<int64_t>(rule.of_b),
                            static_cast<int64_t>(rule.rounding.recipe), static_cast<int64_t>(rule.rounding.gradients)});
    context->saved_data["b lies transposed"] = lies_transposed(b);
    // Not as saved variables: later passes write to these.
    save(*context, "scales", rule.rounding.delays.scales);
    save(*context, "largest", rule.rounding.delays.largest);
    if (added) context->saved_data["added"] = added->sizes().vec();
    return product_of({added.value_or(at::Tensor()), rule.beta, rule.alpha}, {a, rule.of_a}, {b, rule.of_b}, rule.rounding);
  }

  static Tensors backward(Context* context, Tensors grads) {
    const Tensors saved = context->get_saved_variables();
    const Rule rule = rule_of(*context);
    const Float8Factor a{saved[0], rule.of_a}, b{saved[1], rule.of_b};
    const at::Tensor& of_result = grads[0];
    const Float8Factor grad{times(of_result, rule.alpha), Float8Role::gradient};
    Tensors result(4);
    const auto added = context->saved_data.find("added");
    const bool has_added = added != context->saved_data.end();
    if (has_added && context->needs_input_grad(0)) {
      result[0] = times(at::sum_to(of_result, at::IntArrayRef(added->second.toIntVector())), rule.beta);
    }
    const size_t of_a = has_added ? 1 : 0;
    if (context->needs_input_grad(of_a)) result[1] = grad_of_left(grad, b, rule.rounding);
    if (context->needs_input_grad(of_a + 1)) {
      result[2] = grad_of_right(grad, a, context->saved_data["b lies transposed"].toBool(), rule.rounding);
    }
    return result;
  }

 private:
  static void save(Context& context, const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) context.saved_data[name] = tensor;
  }

  static at::Tensor saved(Context& context, const char* name) {
    const auto found = context.saved_data.find(name);
    return found == context.saved_data.end() ? at::Tensor() : found->second.toTensor();
  }

  static Rule rule_of(Context& context) {
    const auto kinds = context.saved_data["kinds"].toIntVector();
    const Float8Rounding rounding{static_cast<Float8Recipe>(kinds[2]),
                                  static_cast<Float8Format>(kinds[3]),
                                  {saved(context, "scales"), saved(context, "largest")}};
    return {context.saved_data["beta"].toScalar(), context.saved_data["alpha"].toScalar(), static_cast<Float8Role>(kinds[0]),
            static_cast<Float8Role>(kinds[1]), in_this_pass(rounding)};
  }

  static Float8Factor transposed(const Float8Factor& factor) { return {factor.values.mT(), factor.role}; }

  static at::Tensor grad_of_left(const Float8Factor& grad, const Float8Factor& b, const Float8Rounding& rounding) {
    return float8_product({}, grad, transposed(b), rounding);
  }

  // In the memory order of b, so that a weight's gradient needs no copy.
  static at::Tensor grad_of_right(const Float8Factor& grad, const Float8Factor& a, bool b_lies_transposed,
                                  const Float8Rounding& rounding) {
    if (b_lies_transposed) return float8_product({}, transposed(grad), a, rounding).mT();
    return float8_product({}, transposed(a), grad, rounding);
  }
};

class RoundedToFloat8 : public torch::autograd::Function<RoundedToFloat8> {
 public:
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static at::Tensor forward(Context*, const at::Tensor& values, Float8Role role, const Float8Rounding& rounding) {
    const c10::impl::ExcludeDispatchKeyGuard off(torch_compat::kOffInside);
    return rounded({values, role}, {}, rounding).rounded.values;
  }
  static Tensors backward(Context*, const Tensors& grads) { return {grads[0], {}, {}}; }
};

// A tensor with its dimensions before the last two as one, broadcast to `batch`.
at::Tensor as_batch(const at::Tensor& tensor, at::IntArrayRef batch) {
  std::vector<int64_t> sizes = batch.vec();
  sizes.insert(sizes.end(), {tensor.size(-2), tensor.size(-1)});
  return tensor.expand(sizes).reshape({c10::multiply_integers(batch), tensor.size(-2), tensor.size(-1)});
}

std::vector<int64_t> with_columns(const at::Tensor& rows, int64_t columns) {
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes.back() = columns;
  return sizes;
}

// Not as a view: programs add to a result in place, as LibTorch's linear layer adds its bias.
at::Tensor as_result(const at::Tensor& product, at::IntArrayRef sizes) { return at::_unsafe_view(product, sizes); }

at::Tensor as_rows(const at::Tensor& tensor) {
  const auto rows = c10::multiply_integers(tensor.sizes().slice(0, tensor.dim() - 1));
  return tensor.reshape({rows, tensor.size(-1)});
}

}  // namespace

at::Tensor float8_product(const Float8Sum& sum, const Float8Factor& a, const Float8Factor& b, const Float8Rounding& rounding) {
  return Float8Product::apply(some_if_defined(sum.added), a.values, b.values,
                              Float8Product::Rule{sum.beta, sum.alpha, a.role, b.role, rounding});
}

at::Tensor float8_matmul(const Float8Factor& a, const Float8Factor& b, const Float8Rounding& rounding) {
  if (b.values.dim() == 2) {
    if (a.values.dim() == 2) return float8_product({}, a, b, rounding);
    return as_result(float8_product({}, {as_rows(a.values), a.role}, b, rounding), with_columns(a.values, b.values.size(1)));
  }
  if (a.values.dim() == 2) {
    // One rounding and one product, not one for each matrix of b.
    return float8_matmul({b.values.mT(), b.role}, {a.values.mT(), a.role}, rounding).mT().contiguous();
  }
  const auto batch =
      at::infer_size(a.values.sizes().slice(0, a.values.dim() - 2), b.values.sizes().slice(0, b.values.dim() - 2));
  const at::Tensor product =
      float8_product({}, {as_batch(a.values, batch), a.role}, {as_batch(b.values, batch), b.role}, rounding);
  std::vector<int64_t> sizes = batch;
  sizes.insert(sizes.end(), {product.size(1), product.size(2)});
  return as_result(product, sizes);
}

at::Tensor float8_linear(const Float8Factor& input, const Float8Factor& weight, const at::Tensor& bias,
                         const Float8Rounding& rounding) {
  const at::Tensor& x = input.values;
  const Float8Factor rows{x.dim() == 2 ? x : as_rows(x), input.role}, columns{weight.values.t(), weight.role};
  const at::Tensor y = float8_product({bias}, rows, columns, rounding);
  return x.dim() == 2 ? y : as_result(y, with_columns(x, weight.values.size(0)));
}

Float8Operands float8_operands(const Float8Factor& input, const Float8Factor& weight, const Float8Rounding& rounding) {
  return {RoundedToFloat8::apply(input.values, input.role, rounding),
          RoundedToFloat8::apply(weight.values, weight.role, rounding)};
}

// By a hook and not by a node: programs change results in place. The result of a single image is a view of a batch of one,
// whose own node would then be gone.
void round_gradient_of(const at::Tensor& result, const Float8Rounding& rounding) {
  if (!result.requires_grad()) return;
  const at::Tensor hooked = result.is_view() ? at::Tensor(result._base()) : result;
  hooked.register_hook([rounding](const at::Tensor& grad) {
    if (!grad.defined()) return grad;
    return RoundedToFloat8::apply(grad, Float8Role::gradient, in_this_pass(rounding));
  });
}

}  // namespace apex::amp::detail
