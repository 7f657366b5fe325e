#pragma once
// For tools/lint --tidy: functions of the CUDA toolkit that clang's headers lack.
__device__ void __stcg(unsigned* to, unsigned value);
__device__ void __stcg(uint2* to, uint2 value);
__device__ void __stcg(uint4* to, uint4 value);
