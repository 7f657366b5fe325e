#pragma once

#include "kernels/statistics/bins.h"

#include <c10/core/ScalarType.h>

#include <cstdint>

// Tables of loops over one contiguous block of values, one table per instruction set. Source files that define a table share no
// inline code with other files (see kernels/cpu/isa.h). All tables give the same bits.
namespace apex::kernels::statistics::cpu {

constexpr int kBlock = 64 * kLanes;
static_assert(kStripSize % kBlock == 0);
// Adjacent values use different tables, so that a repeated value does not wait for its own previous increment.
constexpr int kTables = 4;

// The counts of a tile and the sums of its current strip, accumulated block by block. A bin's count is its sum over all tables,
// modulo 2^32; a single table may have wrapped below 0.
template <class Real>
struct TileState {
  alignas(64) double sums[kLanes], squares[kLanes];
  alignas(64) typename Format<Real>::Bits largest[kLanes];
  alignas(64) uint32_t counts[kTables][kBins<Real>];
};

// Adds at most kBlock values; the first value belongs to lane 0.
template <class Real>
using AddBlock = void (*)(const Real* values, int size, TileState<Real>& state);

struct BlockTable {
  AddBlock<float> of_float;
  AddBlock<double> of_double;
};

extern const BlockTable kPortableBlocks;
extern const BlockTable kAvx2Blocks;
extern const BlockTable kAvx512Blocks;

// Runs the job on tensors of that dtype, with Thrust's OpenMP back end.
void run(at::ScalarType dtype, const Job& job);

}  // namespace apex::kernels::statistics::cpu
