// Where a thread's CUDA kernels go: stream, settings, and the fault word. No CUDA header is needed
// to include this.
//
// The kernels of `cuda_kernels()` have the host's signatures, so what a launch needs besides its
// operands is kept per thread (a rank is a thread): it lasts as long as the `Launching` that set
// it. Views point to device memory. A call returns when its kernels are queued on the stream.
#pragma once

#include <string>

#include "kernels/kernel_table.h"

struct CUstream_st;  // cudaStream_t points to one

namespace plimsoll::kernels::cuda {

class Gemms;  // cuBLASLt's handle and plans: kernels/cuda/gemms.h
class AttentionLibrary;  // cuDNN's: kernels/cuda/attention_library.h

// deterministic: the same operands give the same bits, under every sharding.
// fast: GEMMs are autotuned for each shape, attention goes through the library where there is
// one and it takes the operands, and the gradient's norm is summed as a tree.
enum class Mode : std::uint8_t { deterministic, fast };

struct Launch {
  CUstream_st* stream = nullptr;
  Mode mode = Mode::deterministic;
  bool tf32 = false;  // fp32 GEMMs in TF32: 10 bits of mantissa
  // int32 [2] in device memory, or none: the first fault of a kernel (see below).
  TensorView faults;
  Gemms* gemms = nullptr;  // none: the GEMMs that are written out
  AttentionLibrary* attention = nullptr;  // fast mode; none: the kernels of our own
  // Device memory that no other op of the stream keeps anything in, or none. Only the library's
  // forward attention takes some: 256 bytes with cuDNN 9.19.
  TensorView workspace;
};

// The calling thread's launches go to `launch` until this dies.
class Launching {
 public:
  explicit Launching(const Launch& launch);
  ~Launching();
  Launching(const Launching&) = delete;
  Launching& operator=(const Launching&) = delete;

 private:
  Launch launch_;
  const Launch* outer_;
};

// Of the calling thread. Error{internal} where there is none.
const Launch& current_launch();

// What the host's twin throws at once, a kernel can only note: the first of its faults is kept in
// `faults` as {kind, value}, the row in question counts as zero or is left out, and who reads the
// word after the stream is done (once a step) throws it here.
enum class Fault : std::int32_t { none, token_id, target };
void throw_fault(Fault fault, std::int32_t value);

}  // namespace plimsoll::kernels::cuda
