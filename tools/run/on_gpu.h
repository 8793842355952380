// What a run on a GPU is compared with, and what its driver says while it goes on.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "models/run_spec.h"
#include "reports/measurement.h"
#include "runtime/comm/job.h"

namespace plimsoll::tools {

// Where the run goes on: threads of this process, or processes that were started together.
// `record`: what rank 0 does before an error ends those processes.
runtime::comm::JobOptions job_options(const models::Strategy& strategy, double timeout_seconds,
                                      std::function<void(const Error&)> record);

// Dense FLOP/s of the catalog's GPU of that name in the dtype of the step's GEMMs. Nothing where
// the catalog does not know the GPU, or the GPU has no such units: then there is no MFU.
std::optional<double> peak_flops_of(const std::string& driver_name, models::Precision precision);

// Of its memory, by the catalog.
std::optional<double> bytes_per_second_of(const std::string& driver_name);

// Versions of driver, CUDA and NCCL; the GPU's name and memory. Of the calling thread's GPU.
void describe_gpu(reports::Environment& environment);

// Clocks and power, read between steps: medians in the end.
class ClockSamples {
 public:
  void read();  // of the calling thread's GPU
  std::optional<reports::Clocks> medians() const;

 private:
  std::vector<double> sm_, memory_, power_, temperature_;
  std::int64_t samples_ = 0;
};

}  // namespace plimsoll::tools
