// The host's kernel and its CUDA twin on the same operands.
//
// The same tests make two programs. Suite `gpu` runs the kernels on a GPU. Suite `cpu` runs them,
// compiled by g++, in tests/kernels/emulator, on any machine.
#pragma once

#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/gemms.h"
#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

// Device memory of the program at hand: memory_cuda.cpp or memory_emulated.cpp.
struct DeviceMemory {
  static const char* missing();  // why there is no device; null where there is one
  static std::byte* allocate(std::size_t bytes);
  static void release(std::byte* at);
  static void upload(std::byte* to, const std::byte* from, std::size_t bytes);
  static void download(std::byte* to, const std::byte* from, std::size_t bytes);
  // cuBLASLt's and cuDNN's, or none: in the emulator, in a build without.
  static cuda::Gemms* library();
  static cuda::AttentionLibrary* attention();
  static void run_otherwise(
      bool otherwise);  // the order of the emulator's threads; nothing on a GPU
};

using Views = std::vector<TensorView>;
using Op = std::function<void(const KernelTable&, const Views&)>;

// The operands after the op.
struct Twins {
  std::vector<Tensor> host, cuda;
};

// Runs `op` with either table on copies of `operands` (an empty tensor is a view that is none). On
// the device it runs twice, the second time with every operand one element off its alignment and,
// in the emulator, threads in another order: both must give the same bits, and write nothing
// outside of their operands.
Twins twins(const std::vector<Tensor>& operands, const Op& op,
            cuda::Mode mode = cuda::Mode::deterministic);
// Once, by the libraries where there are any, whose order of sums may depend on the alignment.
Twins library_twins(const std::vector<Tensor>& operands, const Op& op, cuda::Mode mode);

// For CHECK_NEAR(t.cuda[i], t.host[i], limit).
inline double deviation(const Tensor& cuda, const Tensor& host) {
  return deviation(cuda.values(), host.values());
}

// A plain copy to ask one question of the device's result alone.
std::vector<Tensor> on_device(const std::vector<Tensor>& operands, const Op& op, cuda::Mode mode,
                              bool misaligned, bool libraries = false);

// Counts from which kernels with vectors of eight, warps of 32 and blocks of 256 go wrong.
inline constexpr std::int64_t kCounts[] = {1, 7, 8, 9, 255, 2049, 5003};

}  // namespace plimsoll::kernels::test
