#pragma once

#include <cstdint>

#include "kernels/statistics/order.h"

// Work on a block of values that are next to each other, in tables: one for each instruction set. Files that make the tables
// share nothing else with the rest (see kernels/cpu/kernel_table.h). All give the same bits.
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

}  // namespace apex::kernels::statistics::cpu
