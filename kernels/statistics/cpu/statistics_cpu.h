#pragma once

#include "kernels/statistics/bins.h"

#include <c10/core/ScalarType.h>

#include <cstdint>

// Work on a block of values that are next to each other, in tables: one for each instruction set. Files that make the tables
// share nothing else with the rest (see kernels/cpu/isa.h). All give the same bits.
namespace apex::kernels::statistics::cpu {

constexpr int kBlock = 64 * kLanes;
// A value that occurs again and again would wait for its own counter: neighbours have tables of their own.
constexpr int kTables = 4;

// What is found in a tile, block by block. A bin's count is the sum of those of all tables, modulo 2^32: one table may lack
// what another one has too much.
template <class Real>
struct TileState {
  alignas(64) double sums[kLanes], squares[kLanes];
  alignas(64) typename Format<Real>::Bits largest[kLanes];
  alignas(64) uint32_t counts[kTables][kBins<Real>];
};

// At most kBlock values, the first of which belongs to lane 0.
template <class Real>
using AddBlock = void (*)(const Real* values, int size, TileState<Real>& state);

struct BlockTable {
  AddBlock<float> of_float;
  AddBlock<double> of_double;
};

extern const BlockTable kPortableBlocks;
extern const BlockTable kAvx2Blocks;
extern const BlockTable kAvx512Blocks;

// Does the job on tensors of that dtype, by Thrust's OpenMP back end.
void run(at::ScalarType dtype, const Job& job);

// The same as a GPU would, one lane after the other: for tests.
void run_by_lanes(at::ScalarType dtype, const Job& job);

}  // namespace apex::kernels::statistics::cpu
