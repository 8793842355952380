#include <thread>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

// A GEMM long enough for OpenBLAS to share it among threads if it were allowed to, and
// attention.
std::vector<Tensor> step() {
  const Tensor x = drawn({150, 300}, DType::fp32, 1), w = drawn({200, 300}, DType::fp32, 2);
  const AttentionShape s{.sequences = 1,
                         .length = 150,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 50,
                         .window = 0,
                         .scale = 0.1f};
  Tensor q({150, 200}, DType::fp32), out({150, 200}, DType::bf16), sums({150, 4}, DType::fp32);
  k.linear_forward(x, w, {}, {}, q, {});
  const Tensor keys = drawn({150, 100}, DType::bf16, 3);
  k.flash_forward(s, {.rate = 0.1f, .key = {1, 2, 3}}, q, keys, keys, out, sums);
  return {q, out, sums};
}

}  // namespace

TEST_CASE("ranks that are threads compute the bits that one alone does") {
  const std::vector<Tensor> alone = step();
  std::array<std::vector<Tensor>, 4> ranks;
  {
    std::vector<std::jthread> threads;
    for (std::vector<Tensor>& result : ranks)
      threads.emplace_back([&] {
        for (int i = 0; i < 3; ++i) result = step();
      });
  }
  for (const std::vector<Tensor>& result : ranks) CHECK(result == alone);
}

TEST_CASE("a GEMM does not depend on where its operands lie") {
  for (const auto& [rows, wide, columns] :
       {std::array<std::int64_t, 3>{1, 65, 70}, {33, 65, 70}, {150, 300, 200}}) {
    const Tensor x = drawn({rows, wide}, DType::fp32, 1),
                 w = drawn({columns, wide}, DType::fp32, 2);
    Tensor first({rows, columns}, DType::fp32);
    k.linear_forward(x, w, {}, {}, first, {});
    for (std::int64_t shift = 1; shift < 8; ++shift) {
      Tensor far_x({x.elements() + shift}, DType::fp32), far_w({w.elements() + shift}, DType::fp32),
          far_y({first.elements() + shift}, DType::fp32), y(first.shape, DType::fp32);
      const auto at = [shift](Tensor& t, Extents shape) {
        return TensorView(t).rows(shift, shape.elements()).as(shape);
      };
      k.cast(x, at(far_x, x.shape));
      k.cast(w, at(far_w, w.shape));
      k.linear_forward(at(far_x, x.shape), at(far_w, w.shape), {}, {}, at(far_y, y.shape), {});
      k.cast(at(far_y, y.shape), y);
      CHECK(y == first);
    }
  }
}

TEST_CASE("a view of rows begins where they begin") {
  const Tensor x({4, 3}, DType::bf16, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  Tensor y({2, 3}, DType::fp32);
  k.cast(ConstTensorView(x).rows(1, 2), y);
  CHECK(y.values() == std::vector<double>{3, 4, 5, 6, 7, 8});
  CHECK_THROWS_AS(ConstTensorView(x).rows(3, 2), Error);
  CHECK_THROWS_AS(ConstTensorView(x).as({5, 2}), Error);
}

}  // namespace plimsoll::kernels::test
