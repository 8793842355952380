// What autotuning has found, on disk: one line for each GEMM, `key`, a tab, and the library's
// opaque description of the algorithm in hexadecimal digits.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>

namespace plimsoll::kernels::cuda {

// cublasLtMatmulAlgo_t: "can be trivially serialized and later restored for use with the same
// version of cuBLAS library" (cuBLAS documentation). The version and the GPU are part of the key.
using Algorithm = std::array<std::uint64_t, 8>;

class AlgorithmCache {
 public:
  // An empty path: nothing is read or written. A file that is missing, or lines that are damaged,
  // are as if nothing had been found: the GEMMs are tuned again.
  explicit AlgorithmCache(std::string path);

  std::optional<Algorithm> find(const std::string& key) const;
  // Keeps it, and writes the file: a new one beside it takes its place, with what other ranks have
  // written meanwhile. A file that cannot be written costs the next run its tuning, nothing else.
  void add(const std::string& key, const Algorithm& algorithm);

 private:
  void read();

  std::string path_;
  std::map<std::string, Algorithm> found_;
};

}  // namespace plimsoll::kernels::cuda
