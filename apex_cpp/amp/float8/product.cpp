#include <apex_cpp/amp/float8/product.h>

#include <apex_cpp/torch_compat/dispatch_keys.h>
#include "kernels/float8/float8.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>
#include <vector>

namespace apex::amp::detail {
namespace {

using kernels::Float8Blocks;

constexpr int64_t kTileOf128 = 128, kMxBlock = 32;

kernels::Float8 format_of(Float8Role role, Float8Rounding rounding) {
  const bool wide = role == Float8Role::gradient && rounding.gradients == Float8Format::e5m2;
  return wide ? kernels::Float8::e5m2 : kernels::Float8::e4m3;
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

at::Tensor rounded_left(const Float8Factor& a, Float8Rounding rounding) {
  return kernels::round_to_float8(a.values, format_of(a.role, rounding), blocks_of(a.role, rounding.recipe)).values;
}

at::Tensor rounded_right(const Float8Factor& b, Float8Rounding rounding) {
  const Float8Blocks blocks = blocks_of(b.role, rounding.recipe).transposed();
  return kernels::round_to_float8(b.values, format_of(b.role, rounding), blocks).values;
}

// The product of what is rounded already.
at::Tensor product_of(const Float8Sum& sum, const at::Tensor& a, const at::Tensor& b) {
  // The cast engine would take these calls for the program's own.
  const c10::impl::ExcludeDispatchKeyGuard off(torch_compat::kOffInside);
  const bool batched = a.dim() == 3;
  if (!sum.added.defined()) return batched ? at::bmm(a, b) : at::mm(a, b);
  return batched ? at::baddbmm(sum.added, a, b, sum.beta, sum.alpha) : at::addmm(sum.added, a, b, sum.beta, sum.alpha);
}

bool is_one(const c10::Scalar& factor) { return factor.toDouble() == 1; }

at::Tensor times(const at::Tensor& tensor, const c10::Scalar& factor) {
  return is_one(factor) ? tensor : at::mul(tensor, factor);
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
    if (added) context->saved_data["added"] = added->sizes().vec();
    return product_of({added.value_or(at::Tensor()), rule.beta, rule.alpha}, rounded_left({a, rule.of_a}, rule.rounding),
                      rounded_right({b, rule.of_b}, rule.rounding));
  }

  static Tensors backward(Context* context, Tensors grads) {
    const Tensors saved = context->get_saved_variables();
    const Rule rule = rule_of(*context);
    const Float8Factor a{saved[0], rule.of_a}, b{saved[1], rule.of_b};
    const at::Tensor& of_result = grads[0];
    if (!of_result.defined()) return {{}, {}, {}, {}};
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
  static Rule rule_of(Context& context) {
    const auto kinds = context.saved_data["kinds"].toIntVector();
    return {context.saved_data["beta"].toScalar(),
            context.saved_data["alpha"].toScalar(),
            static_cast<Float8Role>(kinds[0]),
            static_cast<Float8Role>(kinds[1]),
            {static_cast<Float8Recipe>(kinds[2]), static_cast<Float8Format>(kinds[3])}};
  }

  static Float8Factor transposed(const Float8Factor& factor) { return {factor.values.mT(), factor.role}; }

  static at::Tensor grad_of_left(const Float8Factor& grad, const Float8Factor& b, Float8Rounding rounding) {
    return float8_product({}, grad, transposed(b), rounding);
  }

  // In the memory order of b, so that a weight's gradient needs no copy.
  static at::Tensor grad_of_right(const Float8Factor& grad, const Float8Factor& a, bool b_lies_transposed,
                                  Float8Rounding rounding) {
    if (b_lies_transposed) return float8_product({}, transposed(grad), a, rounding).mT();
    return float8_product({}, transposed(a), grad, rounding);
  }
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

at::Tensor float8_product(const Float8Sum& sum, const Float8Factor& a, const Float8Factor& b, Float8Rounding rounding) {
  const auto added = sum.added.defined() ? std::make_optional(sum.added) : std::nullopt;
  return Float8Product::apply(added, a.values, b.values, Float8Product::Rule{sum.beta, sum.alpha, a.role, b.role, rounding});
}

at::Tensor float8_matmul(const Float8Factor& a, const Float8Factor& b, Float8Rounding rounding) {
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
                         Float8Rounding rounding) {
  const at::Tensor& x = input.values;
  const Float8Factor rows{x.dim() == 2 ? x : as_rows(x), input.role}, columns{weight.values.t(), weight.role};
  const at::Tensor y = float8_product({bias}, rows, columns, rounding);
  return x.dim() == 2 ? y : as_result(y, with_columns(x, weight.values.size(0)));
}

}  // namespace apex::amp::detail
