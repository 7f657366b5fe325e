#pragma once
#include <ATen/core/Tensor.h>

/// The activation x + sin(alpha x)^2 / alpha (Ziyin et al., 2020), for channels with frequencies of their own. x: (count,
/// channels), alpha: (channels), not 0; both float32, on a CPU. It is the operator custom::snake.
at::Tensor snake(const at::Tensor& x, const at::Tensor& alpha);
/// x times the transposed product of `down` and `up`: a linear layer of low rank. x: (count, in), down: (rank, in), up: (out,
/// rank); any floating dtype, all three of the same. It is the operator custom::low_rank.
at::Tensor low_rank(const at::Tensor& x, const at::Tensor& down, const at::Tensor& up);
