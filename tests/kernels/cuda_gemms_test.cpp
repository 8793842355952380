// What can be known of cuBLASLt's GEMMs without a GPU: what is asked of it, and what is kept.
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "kernels/cuda/algorithm_cache.h"
#include "kernels/cuda/library_call.h"
#include "tests/kernels/operands.h"
#include "tests/scratch_folder.h"

namespace plimsoll::kernels::test {

namespace {

using cuda::Algorithm;
using cuda::AlgorithmCache;
using cuda::LibraryCall;
using cuda::LibraryMatrix;

float element(const LibraryMatrix& x, std::int64_t row, std::int64_t column) {
  const std::int64_t r = x.transposed ? column : row, c = x.transposed ? row : column;
  REQUIRE(r < x.rows);
  REQUIRE(c < x.columns);
  return static_cast<const float*>(x.data)[r + c * x.stride];
}

// The GEMM as the library's documentation defines it: column-major.
void multiply(const LibraryCall& call, const float* bias, float alpha, float* d) {
  const std::int64_t depth = call.a.transposed ? call.a.rows : call.a.columns;
  for (std::int64_t r = 0; r < call.d.rows; ++r)
    for (std::int64_t c = 0; c < call.d.columns; ++c) {
      float sum = 0;
      for (std::int64_t l = 0; l < depth; ++l) sum += element(call.a, r, l) * element(call.b, l, c);
      float& to = d[r + c * call.d.stride];
      to = alpha * sum + (call.accumulate ? to : 0) + (bias ? bias[r] : 0);
    }
}

// One GEMM of drawn operands in one of the four layouts, and what it should make.
struct Drawn {
  std::int64_t m, n, k;
  bool a_turned, b_turned, accumulate;
  Tensor a = drawn(a_turned ? Extents{k, m} : Extents{m, k}, DType::fp32, 1);
  Tensor b = drawn(b_turned ? Extents{n, k} : Extents{k, n}, DType::fp32, 2);
  Tensor bias = drawn({n}, DType::fp32, 3);
  Tensor c = drawn({m, n}, DType::fp32, 4);
  Tensor old = c;

  cuda::Gemm gemm() const {
    return {m, n, k, {a, a_turned}, {b, b_turned}, bias, 0.5f, accumulate};
  }
  double expected(std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t l = 0; l < k; ++l)
      sum += a.at(a_turned ? l * m + i : i * k + l) * b.at(b_turned ? j * k + l : l * n + j);
    return 0.5 * sum + bias.at(j) + (accumulate ? old.at(i * n + j) : 0);
  }
  // The largest distance from that; NaN where there is one.
  double deviation() const {
    double most = 0;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const double distance = std::abs(c.at(i * n + j) - expected(i, j));
        if (!(distance <= most)) most = distance;
        if (std::isnan(most)) return most;
      }
    return most;
  }
};

template <class Visit>
void for_layouts(std::int64_t m, std::int64_t n, std::int64_t k, Visit visit) {
  for (const bool a_turned : {false, true})
    for (const bool b_turned : {false, true})
      for (const bool accumulate : {false, true}) {
        CAPTURE(m);
        CAPTURE(n);
        CAPTURE(k);
        CAPTURE(a_turned);
        CAPTURE(b_turned);
        Drawn x{m, n, k, a_turned, b_turned, accumulate};
        visit(x);
      }
}

using plimsoll::test::ScratchFolder;

std::string file_of(const ScratchFolder& folder) {
  return folder / "algorithms";
}
std::size_t files(const ScratchFolder& folder) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

constexpr Algorithm kOne{1, 2, 3, 4, 5, 6, 7, 0xfedcba9876543210};
constexpr Algorithm kTwo{8, 7, 6, 5, 4, 3, 2, 1};

}  // namespace

// Multiples of 1/64 below 3, sums of up to 5 products: exact in fp32 in any order.
TEST_CASE("what the library is asked for is the linear ops' GEMM, in all four layouts") {
  for_layouts(3, 4, 5, [](Drawn& x) {
    const cuda::Gemm gemm = x.gemm();
    const LibraryCall call = library_call(gemm, x.c, {}, false);
    CHECK(refusal(call, gemm).empty());
    multiply(call, static_cast<const float*>(gemm.bias.data), 0.5f,
             static_cast<float*>(TensorView(x.c).data));
    CHECK(x.deviation() == 0);
  });
}

// A length of 1027 in each place in turn: in fp32 1024 + 3, and of a sum the 3 first.
TEST_CASE("a long row that is no multiple of 16 bytes is cut, and its parts are the GEMM") {
  for (const auto& [m, n, k] : {std::array{1027, 2, 3}, {2, 1027, 3}, {2, 3, 1027}, {2, 3, 1024}})
    for_layouts(m, n, k, [](Drawn& x) {
      const cuda::Gemm gemm = x.gemm();
      const std::vector<cuda::LibraryPart> parts = parts_of(library_call(gemm, x.c, {}, false));
      // Contiguous: n in c, and where b is not turned in b; m in a where it is turned; else k.
      const bool cut = x.n == 1027 || (x.m == 1027 && x.a_turned) ||
                       (x.k == 1027 && (!x.a_turned || x.b_turned));
      CHECK(parts.size() == (cut ? 2 : 1));
      for (const cuda::LibraryPart& part : parts) {
        for (const LibraryMatrix& matrix : {part.call.a, part.call.b, part.call.d})
          CHECK((!cut || matrix.rows % 4 == 0 || matrix.rows < 4));
        multiply(
            part.call,
            part.call.bias ? static_cast<const float*>(gemm.bias.data) + part.bias_offset : nullptr,
            0.5f, static_cast<float*>(const_cast<void*>(part.call.d.data)));
      }
      CHECK(x.deviation() <= 1e-6 * static_cast<double>(x.k));
    });
}

TEST_CASE("what decides over an algorithm is in the key, addresses are not") {
  const Tensor a = drawn({8, 16}, DType::bf16, 1), b = drawn({24, 16}, DType::bf16, 2);
  const Tensor other = a;
  Tensor c({8, 24}, DType::bf16), wide({8, 24}, DType::fp32), workspace({256}, DType::fp32);
  const auto gemm = [&](const Tensor& x) {
    return cuda::Gemm{8, 24, 16, {x}, {b, true}, {}, 1, false};
  };
  const LibraryCall call = library_call(gemm(a), c, workspace, true);
  CHECK(call.key() ==
        "a=bf16:16x24/16t b=bf16:16x8/16n d=bf16:24x8/24n beta=0 align=16 "
        "workspace=1024");
  CHECK(library_call(gemm(other), c, workspace, true).key() == call.key());
  CHECK(!(call < library_call(gemm(other), c, workspace, true)));
  std::vector<LibraryCall> others(7, call);
  others[0] = library_call(gemm(a), wide, workspace, true);
  others[1] = library_call(gemm(a), c, {}, true);
  others[2].accumulate = true;
  others[3].bias = true;
  others[4].tf32 = true;
  others[5].scaled = true;
  others[6].fast_sums = true;
  for (const LibraryCall& x : others) {
    CHECK(x.key() != call.key());
    CHECK(((x < call) != (call < x)));
  }
}

TEST_CASE("the alignment that is promised is the least of all operands', and never more than 16") {
  const Tensor b = drawn({4, 16}, DType::fp32, 2);
  alignas(64) static float memory[64];
  for (const auto& [offset, expected] : {std::pair{0, 16}, {1, 4}, {2, 8}, {4, 16}, {8, 16}}) {
    const cuda::Gemm gemm{
        1,         4,  16, {ConstTensorView(memory + offset, DType::fp32, {1, 16})},
        {b, true}, {}, 1,  false};
    const TensorView c(memory + 48, DType::fp32, {1, 4});
    CHECK(library_call(gemm, c, {}, false).alignment == expected);
  }
}

TEST_CASE("dtypes that the library does not multiply are refused by name") {
  const auto why = [](DType a, DType b, DType c, DType bias) {
    const Tensor x({2, 3}, a), w({3, 4}, b), offset({4}, bias);
    Tensor y({2, 4}, c);
    const cuda::Gemm gemm{2, 4, 3, {x}, {w}, offset, 1, false};
    return refusal(library_call(gemm, y, {}, false), gemm);
  };
  constexpr DType f = DType::fp32, b = DType::bf16, h = DType::fp16;
  CHECK(why(f, f, f, f).empty());
  CHECK(why(b, b, b, b).empty());
  CHECK(why(h, h, f, f).empty());
  CHECK(why(b, f, f, f) == "operands of bf16 and fp32");
  CHECK(why(b, b, h, h) == "a result of fp16 from operands of bf16");
  CHECK(why(f, f, b, b) == "a result of bf16 from operands of fp32");
  CHECK(why(b, b, b, f) == "a bias of fp32 for a result of bf16");
}

TEST_CASE(
    "the library multiplies 8 bits with scales, one of the two in e4m3, into any storage type") {
  const auto why = [](DType a, DType b, DType c, bool scaled) {
    const Tensor x({16, 32}, a), w({48, 32}, b), one({2}, DType::fp32, 1);
    Tensor y({16, 48}, c);
    cuda::Gemm gemm{16, 48, 32, {x}, {w, true}, {}, 1, false};
    if (scaled) gemm.a_scale = gemm.b_scale = one;
    return refusal(library_call(gemm, y, {}, false), gemm);
  };
  constexpr DType four = DType::fp8_e4m3, five = DType::fp8_e5m2, half = DType::bf16;
  for (const DType result : kStorage) {
    CHECK(why(four, four, result, true).empty());
    CHECK(why(five, four, result, true).empty());
    CHECK(why(four, five, result, true).empty());
  }
  CHECK(why(five, five, half, true) == "operands of fp8_e5m2 and fp8_e5m2");
  CHECK(why(four, four, half, false) == "operands of fp8_e4m3 and fp8_e4m3");
  CHECK(why(four, half, half, true) == "operands of fp8_e4m3 and bf16");
  CHECK(why(four, four, DType::int32, true) == "a result of int32 from operands of fp8_e4m3");
}

// Of a matrix [rows, K] the library sees [K, rows]; its tensor cores for 8 bits want the first
// operand turned and the second not ("TN", cuBLAS documentation, cublasLtMatmul).
TEST_CASE("a GEMM in 8 bits comes to the library as its tensor cores want it") {
  const Tensor x({16, 32}, DType::fp8_e4m3), w({48, 32}, DType::fp8_e4m3), one({2}, DType::fp32, 1);
  Tensor y({16, 48}, DType::bf16);
  const cuda::Gemm gemm{.m = 16,
                        .n = 48,
                        .k = 32,
                        .a = {x},
                        .b = {w, true},
                        .bias = {},
                        .a_scale = one,
                        .b_scale = one,
                        .fast_sums = true};
  CHECK(library_call(gemm, y, {}, false).key() ==
        "a=fp8_e4m3:32x48/32t b=fp8_e4m3:32x16/32n d=bf16:48x16/48n beta=0 scaled fast align=16 "
        "workspace=0");
}

TEST_CASE("an algorithm that was found is found again by the next process") {
  const ScratchFolder folder;
  AlgorithmCache first(file_of(folder));
  CHECK(!first.find("m=1"));
  first.add("m=1", kOne);
  first.add("m=2", kTwo);
  CHECK(first.find("m=1") == kOne);
  const AlgorithmCache second(file_of(folder));
  CHECK(second.find("m=1") == kOne);
  CHECK(second.find("m=2") == kTwo);
  CHECK(!second.find("m=3"));
  CHECK(files(folder) == 1);  // nothing is left beside it
}

TEST_CASE("ranks that tune at the same time keep what the others found") {
  const ScratchFolder folder;
  AlgorithmCache a(file_of(folder)), b(file_of(folder));
  a.add("a", kOne);
  b.add("b", kTwo);
  const AlgorithmCache later(file_of(folder));
  CHECK(later.find("a") == kOne);
  CHECK(later.find("b") == kTwo);
}

TEST_CASE("damaged lines and an unwritable file cost no more than tuning again") {
  const ScratchFolder folder;
  AlgorithmCache(file_of(folder)).add("good", kOne);
  {
    std::ofstream file(file_of(folder), std::ios::app);
    file << "no tab\n\tno key\nshort\t0123\nletters\t" << std::string(128, 'x') << "\nlong\t"
         << std::string(129, '0') << "\n\n";
  }
  const AlgorithmCache cache(file_of(folder));
  CHECK(cache.find("good") == kOne);
  for (const char* key : {"no tab", "", "short", "letters", "long"}) CHECK(!cache.find(key));
  AlgorithmCache nowhere(file_of(folder) + "/no/such/folder");
  nowhere.add("m=1", kOne);
  CHECK(nowhere.find("m=1") == kOne);
  AlgorithmCache unnamed("");
  unnamed.add("m=1", kOne);
  CHECK(unnamed.find("m=1") == kOne);
}

}  // namespace plimsoll::kernels::test
