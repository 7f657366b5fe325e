#pragma once
#include <ATen/core/Tensor.h>

/// The activation x + sin(alpha x)^2 / alpha (Ziyin et al., 2020), with a frequency alpha per channel. x: (count, channels),
/// alpha: (channels), nonzero; both float32, on a CPU. Registered as custom::snake.
at::Tensor snake(const at::Tensor& x, const at::Tensor& alpha);
/// x multiplied by the transpose of `down`, then by the transpose of `up`: a low-rank linear layer. x: (count, in), down:
/// (rank, in), up: (out, rank); any floating dtype, the same for all three. Registered as custom::low_rank.
at::Tensor low_rank(const at::Tensor& x, const at::Tensor& down, const at::Tensor& up);
