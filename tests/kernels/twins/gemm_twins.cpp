// Linear layers: on a GPU by cuBLASLt where it takes the operands, else by the kernel of our own.
#include <cmath>

#include "kernels/cuda/gemms.h"
#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

namespace {

struct Case {
  std::int64_t tokens, in, out;
  DType x, weight, y, bias;
  LinearOptions options;
};

// Sums of k products differ by their order: 2^-24 · sqrt(k) of them, with room.
double limit(const Case& c, DType result) {
  return result == DType::fp32 ? 1e-5 : 1.01 * once(result) + (c.options.accumulate ? 1e-3 : 0);
}

enum class By { kernel, library };

double size_of(const Tensor& x) {
  double squares = 0;
  for (std::int64_t i = 0; i < x.elements(); ++i) squares += x.at(i) * x.at(i);
  return std::sqrt(squares);
}

// A library may round the product and what it adds to one by one (cuBLASLt's for a single row and
// column does, on an H100): each rounding is of a summand, and what is left of them may be small.
double of_summands(const Case& c, const std::vector<Tensor>& operands, const Tensor& result) {
  const double bias = size_of(operands[2]) * std::sqrt(static_cast<double>(c.tokens));
  const double old = c.options.accumulate ? size_of(operands[3]) : 0, all = size_of(result);
  return (all + 2 * (bias + old)) / all;
}

void check_case(const Case& c, By by) {
  CAPTURE(c.tokens);
  CAPTURE(c.in);
  CAPTURE(c.out);
  CAPTURE(name_of(c.x));
  CAPTURE(name_of(c.y));
  CAPTURE(c.options.transposed);
  const Extents weight = c.options.transposed ? Extents{c.in, c.out} : Extents{c.out, c.in};
  const std::vector<Tensor> operands = {
      drawn({c.tokens, c.in}, c.x, 1),  drawn(weight, c.weight, 2),
      drawn({c.out}, c.bias, 3),        drawn({c.tokens, c.out}, c.y, 4),
      drawn({c.tokens, c.out}, c.x, 5), drawn({c.tokens, c.in}, c.x, 6),
      drawn(weight, DType::fp32, 7),    drawn(weight, c.weight, 8),
      Tensor({1 << 16}, DType::fp32)};
  const Op op = [&](const KernelTable& k, const Views& v) {
    k.linear_forward(v[0], v[1], v[2], c.options, v[3], v[8]);
    k.linear_backward_input(v[4], v[1], c.options, v[5], v[8]);
    k.linear_backward_weight(v[4], v[0], c.options, v[6], v[8]);
    k.linear_backward_weight(v[4], v[0], c.options, v[7], v[8]);
  };
  const auto check_twins = [&](const Twins& t) {
    const double room = by == By::library ? of_summands(c, operands, t.host[3]) : 1;
    CHECK_NEAR(t.cuda[3], t.host[3], limit(c, c.y) * room);
    CHECK_NEAR(t.cuda[5], t.host[5], limit(c, c.x));
    CHECK_NEAR(t.cuda[6], t.host[6], limit(c, DType::fp32));
    CHECK_NEAR(t.cuda[7], t.host[7], limit(c, c.weight));
  };
  if (by == By::kernel) return check_twins(twins(operands, op));
  // Fast mode tries algorithms on the operands themselves, and must leave no trace of that.
  for (const cuda::Mode mode : {cuda::Mode::deterministic, cuda::Mode::fast, cuda::Mode::fast})
    check_twins(library_twins(operands, op, mode));
}

void check_linear_layers(By by) {
  for (const DType dtype : kStorage)
    for (const auto& [tokens, in, out] :
         {std::array{1, 1, 1}, {5, 16, 24}, {65, 33, 70}, {64, 64, 128}, {3, 130, 1}})
      for (const bool transposed : {false, true})
        for (const bool accumulate : {false, true})
          check_case({tokens,
                      in,
                      out,
                      dtype,
                      dtype,
                      dtype,
                      dtype,
                      {.transposed = transposed, .accumulate = accumulate, .scale = 0.75f}},
                     by);
}

void check_mixed_operands(By by) {
  check_case({17, 40, 24, DType::bf16, DType::fp32, DType::fp32, DType::bf16, {}}, by);
  check_case({17, 40, 24, DType::fp32, DType::bf16, DType::bf16, DType::fp32, {}}, by);
  check_case({17, 40, 24, DType::fp16, DType::bf16, DType::fp32, DType::fp16, {}}, by);
}

}  // namespace

TEST_CASE("linear layers are the host's, forward and backward, of either layout") {
  check_linear_layers(By::kernel);
}

TEST_CASE("operands of mixed dtypes are taken") {
  check_mixed_operands(By::kernel);
}

TEST_CASE("cuBLASLt: linear layers and mixed operands; no shape of one dtype is refused") {
  check_linear_layers(By::library);
  for (const auto& [why, count] : DeviceMemory::library()->refusals())
    CHECK_MESSAGE(why.find("no algorithm") == std::string::npos, why << ", " << count << " times");
  check_mixed_operands(By::library);
}

// 50 columns in rows of 56, as a vocabulary that is no multiple of 8 has its logits. The guard is
// the columns behind them: NaN, neither read nor written.
TEST_CASE("rows of a result may be wider than the GEMM, and what is behind them is left") {
  constexpr std::int64_t tokens = 9, in = 24, out = 50, stride = 56;
  for (const DType dtype : kStorage) {
    Tensor y({tokens, stride}, dtype), d_y = drawn({tokens, stride}, dtype, 2);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t c = out; c < stride; ++c)
        y.set(t * stride + c, 7), d_y.set(t * stride + c, std::nan(""));
    const Op op = [&](const KernelTable& k, const Views& v) {
      k.linear_forward(v[0], v[1], v[2], {}, Columns(v[3], 0, out), v[7]);
      k.linear_backward_input(ConstColumns(v[4], 0, out), v[1], {}, v[5], v[7]);
      k.linear_backward_weight(ConstColumns(v[4], 0, out), v[0], {.accumulate = true}, v[6], v[7]);
    };
    const std::vector<Tensor> operands = {drawn({tokens, in}, dtype, 1),
                                          drawn({out, in}, dtype, 3),
                                          drawn({out}, dtype, 4),
                                          y,
                                          d_y,
                                          Tensor({tokens, in}, dtype),
                                          drawn({out, in}, dtype, 5),
                                          Tensor({1 << 12}, DType::fp32)};
    const auto check = [&](const Twins& t) {
      CHECK_NEAR(t.cuda[3], t.host[3], 1e-5 + 1.01 * once(dtype));
      CHECK_NEAR(t.cuda[5], t.host[5], 1e-5 + 1.01 * once(dtype));
      CHECK_NEAR(t.cuda[6], t.host[6], 1e-3 + 1.01 * once(dtype));
      for (std::int64_t row = 0; row < tokens; ++row)
        for (std::int64_t c = out; c < stride; ++c) CHECK(t.cuda[3].at(row * stride + c) == 7);
    };
    check(twins(operands, op));
    if (DeviceMemory::library()) check(library_twins(operands, op, cuda::Mode::fast));
  }
}

TEST_CASE("nothing to add up leaves the bias and what was there") {
  const Twins t =
      twins({Tensor({3, 0}, DType::bf16), Tensor({5, 0}, DType::bf16), drawn({5}, DType::bf16, 1),
             drawn({3, 5}, DType::bf16, 2), Tensor({64}, DType::fp32)},
            [](const KernelTable& k, const Views& v) {
              k.linear_forward(v[0], v[1], v[2], {.accumulate = true}, v[3], v[4]);
            });
  CHECK(t.cuda[3] == t.host[3]);
}

TEST_CASE("what a shape does not allow is an internal error, as on the host") {
  CHECK_THROWS_AS(on_device(
                      {drawn({3, 4}, DType::fp32, 1), drawn({5, 6}, DType::fp32, 1),
                       Tensor({3, 5}, DType::fp32)},
                      [](const KernelTable& k, const Views& v) {
                        k.linear_forward(v[0], v[1], {}, {}, v[2], {});
                      },
                      cuda::Mode::deterministic, false),
                  Error);
}

}  // namespace plimsoll::kernels::test
