// Tensors of a test, goldens that fill them, and how far a result is from what it should be.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/number.h"

namespace plimsoll::kernels::test {

using Json = nlohmann::json;

// Owns its bytes.
struct Tensor {
  std::vector<std::byte> bytes;
  DType dtype = DType::fp32;
  Extents shape{0};

  Tensor() = default;
  Tensor(Extents extents, DType type, double value = 0);  // filled
  Tensor(Extents extents, DType type, const std::vector<double>& values);

  std::int64_t elements() const { return shape.elements(); }
  operator TensorView() { return {bytes.data(), dtype, shape}; }
  operator ConstTensorView() const { return {bytes.data(), dtype, shape}; }
  operator Columns() { return Columns(TensorView(*this)); }
  operator ConstColumns() const { return ConstColumns(ConstTensorView(*this)); }
  double at(std::int64_t i) const;
  void set(std::int64_t i, double value);
  std::vector<double> values() const;
  bool operator==(const Tensor&) const = default;  // bit for bit
};

// Cases of tests/golden/kernels/<family>.json.
Json goldens(const std::string& family);
// An operand or a result of a case ("in", "out").
std::vector<double> golden_values(const Json& tensor);
Tensor golden(const Json& tensor, DType dtype);
inline Tensor input(const Json& c, const char* name, DType dtype) {
  return golden(c["in"][name], dtype);
}

// ‖actual - expected‖ / ‖expected‖; inf where a value is not finite or the sizes differ.
double deviation(const std::vector<double>& actual, const std::vector<double>& expected);
double deviation(const Tensor& actual, const Json& expected);
// Rounding once changes a value by at most 2^-24, 2^-8 (bf16) or 2^-11 (fp16) of it; fp32 sums
// more.
inline double once(DType dtype) {
  return dtype == DType::fp32 ? 1e-6 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}
// The largest deviation of each tensor and dtype is kept and printed when PLIMSOLL_DEVIATIONS is
// set.
#define CHECK_NEAR(actual, expected, limit)                                          \
  do {                                                                               \
    const double deviation_ = deviation((actual), (expected));                       \
    record(#actual, (actual).dtype, deviation_);                                     \
    CHECK_MESSAGE(deviation_ <= (limit),                                             \
                  #actual " deviates by " << deviation_ << ", at most " << (limit)); \
  } while (false)
void record(const char* what, DType dtype, double deviation);

inline constexpr DType kStorage[] = {DType::fp32, DType::bf16, DType::fp16};

// Runs `visit(case, dtype)` over the goldens of a family and the storage dtypes.
void for_goldens(const std::string& family, const std::function<void(const Json&, DType)>& visit);

// Multiples of 1/64, the same on every machine.
std::vector<double> drawn(std::int64_t n, std::uint64_t seed);
inline Tensor drawn(Extents shape, DType dtype, std::uint64_t seed) {
  return {shape, dtype, drawn(shape.elements(), seed)};
}

// Squares of one piece; the end of a single total over all sums.
inline void add_squares(const KernelTable& k, ConstTensorView piece, std::int64_t first,
                        std::int64_t chunk, TensorView sums) {
  const SquaredPiece one{piece, first, sums};
  k.sum_of_squares({&one, 1}, chunk);
}
inline std::vector<std::int64_t> all_of(const ConstTensorView& sums) {
  return {sums.elements()};
}

// The slope of sum(d_y · y(x)) along each element of x, by central differences of fp32 forwards.
std::vector<double> slopes(const Tensor& x, const Tensor& d_y,
                           const std::function<Tensor(const Tensor&)>& y, double step = 1.0 / 64);

}  // namespace plimsoll::kernels::test
