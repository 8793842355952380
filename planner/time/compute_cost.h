// Seconds that one GPU needs for the work of a step's ops: each GEMM and attention by its
// roofline (FLOPs against rate, bytes against bandwidth), the rest by the bytes that it moves, and
// the launches of kernels.
#pragma once

#include "models/run_spec.h"
#include "planner/program/work.h"
#include "planner/time/gpu_rates.h"

namespace plimsoll::planner {

// Where the time of some work goes. The GPU is busy for gemm (GEMMs and attention) + memory; the
// host needs `launches` to issue it, beside the GPU.
struct Cost {
  double gemm = 0, memory = 0, launches = 0;
  double busy() const { return gemm + memory; }
  double seconds() const { return busy() > launches ? busy() : launches; }
  Cost& operator+=(const Cost& other) {
    gemm += other.gemm;
    memory += other.memory;
    launches += other.launches;
    return *this;
  }
};
inline Cost operator+(Cost a, const Cost& b) {
  return a += b;
}
inline Cost operator*(double times, const Cost& cost) {
  return {times * cost.gemm, times * cost.memory, times * cost.launches};
}

// Who computes, as far as time depends on it beyond the program.
struct Execution {
  DType compute = DType::bf16;  // of GEMMs
  bool fused = false;  // one kernel for a row-wise operation, where eager has one for each step
  bool compiled = false;  // casts are no kernels of their own
  models::Attention attention = models::Attention::flash;
  double launch = 0;  // seconds of the host for one kernel
};
Execution execution_of(const models::Strategy& strategy);

Cost cost_of(const GpuRates& gpu, const Gemm& gemm);
Cost cost_of(const GpuRates& gpu, const Execution& execution, const FusedAttention& attention);
// Of what is neither.
Cost cost_of_rest(const GpuRates& gpu, const Execution& execution, const WorkSum& sum);

// Of the optimizer's ops (optimizer_work), which nothing fuses with others.
Cost optimizer_cost(const GpuRates& gpu, const Execution& execution, const WorkSum& sum);

}  // namespace plimsoll::planner
