// GEMMs: what the three linear ops have in common, and who computes it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/library_choice.h"

namespace plimsoll::kernels::cuda {

struct Matrix {
  ConstColumns view;  // rows and columns as stored, row-major
  bool transposed = false;  // the GEMM takes the transpose
};

// c [m, n] = scale · a · b + bias, plus the old c where `accumulate`; a: m × k, b: k × n. Operands
// of 8 bits have scales on the device, whose first element each value is to be multiplied with.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  Matrix a, b;
  ConstTensorView bias;  // [n] or none
  float scale = 1;
  bool accumulate = false;
  ConstTensorView a_scale, b_scale;  // fp32, or none
  bool fast_sums = false;  // kernels/float8_kernels.h

  bool scaled() const { return static_cast<bool>(a_scale); }
};

// A library that multiplies.
class Gemms {
 public:
  virtual ~Gemms() = default;
  // Queues the GEMM on the thread's stream, in `workspace` and nowhere else. False where the
  // library cannot: nothing is queued then, and `refusals` says why.
  virtual bool multiply(const Gemm& gemm, Columns c, TensorView workspace) = 0;
  // Why, and how often.
  virtual std::map<std::string, std::int64_t> refusals() const = 0;
  virtual std::string version() const = 0;  // of the library that was loaded
  virtual std::vector<LibraryChoice> choices() const = 0;
};

struct GemmOptions {
  std::string autotune_cache;  // a file, or empty: what fast mode has found is forgotten
};

// cuBLASLt's, for the current device. Belongs to one thread. Error{device}: there is no device.
std::unique_ptr<Gemms> cublaslt_gemms(const GemmOptions& options);

// The kernel of our own: any dtypes, any alignment; slow.
void plain_gemm(const Gemm& gemm, Columns c);

}  // namespace plimsoll::kernels::cuda
