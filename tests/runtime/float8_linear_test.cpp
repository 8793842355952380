// A linear in 8 bits, forward and backward, against torchao's Float8Linear
// (tools/oracle/float8_goldens.py).
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/modules/linear.h"
#include "tests/runtime/goldens.h"
#include "tests/runtime/tiny_model.h"

namespace plimsoll::runtime::test {
namespace {

using Values = std::vector<double>;

struct OneWeight final : ParameterStore {
  Tensor weight, sum;
  ConstTensorView value(std::size_t) const override { return weight.view(); }
  TensorView gradient(std::size_t) override { return sum.view(); }
};

// [rows, columns] as [columns, rows].
Values turned(const Values& x, std::int64_t columns) {
  const auto n = static_cast<std::size_t>(columns), rows = x.size() / n;
  Values y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i % n * rows + i / n] = x[i];
  return y;
}

void check_linear(const nlohmann::json& c, bool transposed) {
  const auto values = [&](const char* where, const char* name) {
    return c[where][name]["values"].get<Values>();
  };
  const std::int64_t in = c["in"]["weight"]["shape"][1], out = c["in"]["weight"]["shape"][0],
                     tokens = c["in"]["x"]["shape"][0];
  const auto stored = [&](const Values& w) { return transposed ? turned(w, in) : w; };
  models::Strategy strategy;
  strategy.precision = models::Precision::fp8_mixed;
  Worker worker(host_device(), 0, {.poison = true});
  worker.regime = models::decisions::regime_of(strategy);
  worker.workspace =
      worker.memory.allocate("workspace", Category::workspace, DType::uint8, {16 << 20});
  const auto made = [&](const char* name, Extents shape, const Values& of) {
    Tensor tensor = worker.memory.allocate(name, Category::activations, DType::bf16, shape);
    set_values(tensor.view(), of);
    return tensor;
  };
  const Extents shape = transposed ? Extents{in, out} : Extents{out, in};
  OneWeight store;
  store.weight = made("weight", shape, stored(values("in", "weight")));
  store.sum = made("sum", shape, Values(static_cast<std::size_t>(in * out)));
  LinearParameters parameters;
  parameters.weight = Parameter(store, 0, true);
  parameters.transposed = transposed;
  parameters.in = in;
  parameters.out = out;
  Tensor scales = worker.memory.allocate("scales", Category::workspace, DType::fp32,
                                         {models::decisions::kFloat8ScaleWords});
  parameters.float8_scales = scales.view();
  const models::decisions::LinearNames names = models::decisions::linear_names_of("linear");
  Linear linear(worker, names, parameters, 0);
  REQUIRE(linear.in_float8());
  const Tensor x = made("x", {tokens, in}, values("in", "x"));
  const Tensor d_y = made("d_y", {tokens, out}, values("in", "d_y"));

  Float8Cast x8 = linear.input8(reading(x), Phase::forward, {.straight = true});
  const Tensor y = linear.forward8(x8, true, "y");
  Float8Cast again = linear.input8(reading(x), Phase::backward, {.turned = true});
  Float8Cast d8 = linear.gradient8(reading(d_y), true);
  linear.backward_weight8(reading(d_y), d8, again, true);
  Tensor d_x;
  linear.backward_input8(d8, "d_x", d_x);

  // One rounding to bf16: a code of another format or scale is 2 to 6 % off.
  CHECK(deviation(values_of(y.view()), values("out", "y")) <= 0x1p-8);
  CHECK(deviation(values_of(d_x.view()), values("out", "d_x")) <= 0x1p-8);
  CHECK(deviation(values_of(store.sum.view()), stored(values("out", "d_weight"))) <= 0x1p-8);
  // All casts are gone.
  for (const Tensor* left :
       {&x8.values, &again.transposed, &d8.values, &d8.transposed, &d8.own_scale})
    CHECK(!*left);
}

}  // namespace

TEST_CASE("a linear in 8 bits and its gradients are torchao's, for both layouts of the weight") {
  const auto golden =
      nlohmann::json::parse(std::ifstream(PLIMSOLL_GOLDEN "/kernels/float8.json"))["linears"];
  CHECK(golden.size() == 2);
  for (const nlohmann::json& c : golden)
    for (const bool transposed : {false, true}) check_linear(c, transposed);
}

}  // namespace plimsoll::runtime::test
