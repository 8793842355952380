#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

namespace {
const KernelTable& k = host_kernels();
}  // namespace

TEST_CASE("embeddings and their gradients are PyTorch's, whatever ids repeat") {
  for_goldens("embedding", [](const Json& c, DType dtype) {
    const std::int64_t length = c["arguments"]["length"];
    const Tensor ids = input(c, "ids", dtype), table = input(c, "table", dtype),
                 positions = input(c, "positions", dtype);
    Tensor d_out = input(c, "d_out", dtype), out(d_out.shape, dtype, 7);
    k.embedding_forward(ids, table, positions, length, {}, out);
    CHECK_NEAR(out, c["out"]["out"], once(dtype));
    Tensor d_table(table.shape, dtype), d_positions(positions.shape, dtype),
        sorted({4, ids.elements()}, DType::int32, -1);
    k.embedding_backward(ids, length, {}, d_out, d_table, d_positions, sorted);
    CHECK_NEAR(d_table, c["out"]["d_table"], once(dtype));
    CHECK_NEAR(d_positions, c["out"]["d_positions"], once(dtype));
    CHECK(d_out == input(c, "d_out", dtype));  // nothing was dropped
  });
}

TEST_CASE("a gradient is added to the rows of a table, other rows stay") {
  for (const DType dtype : kStorage) {
    const Tensor ids({3}, DType::int32, {2, 0, 2});
    Tensor d_out({3, 2}, dtype, {1, 2, 3, 4, 5, 6}), d_table({4, 2}, dtype, 10),
        sorted({4, 3}, DType::int32);
    k.embedding_backward(ids, 3, {}, d_out, d_table, {}, sorted);
    CHECK(d_table.values() == std::vector<double>{13, 14, 10, 10, 16, 18, 10, 10});
  }
}

// Row 0 gets 1000 times 1: in bf16 a running sum would stop at 256.
TEST_CASE("a frequent token's gradient is summed in fp32 and rounded once") {
  const Tensor ids({1000}, DType::int32, 0.0);
  Tensor d_out({1000, 1}, DType::bf16, 1), d_table({1, 1}, DType::bf16),
      sorted({4, 1000}, DType::int32);
  k.embedding_backward(ids, 1000, {}, d_out, d_table, {}, sorted);
  CHECK(d_table.at(0) == 1000);
}

TEST_CASE("what the forward dropped, the backward masks in place: its gradient is the slope") {
  const Dropout dropout{.rate = 0.4f, .key = {7, 3, 1}, .first_element = 1000};
  const Tensor ids({4}, DType::int32, {1, 0, 1, 1}), table = drawn({2, 5}, DType::fp32, 1),
                                                     positions = drawn({2, 5}, DType::fp32, 2),
                                                     d = drawn({4, 5}, DType::fp32, 3);
  Tensor d_out = d, d_table(table.shape, DType::fp32), d_positions(positions.shape, DType::fp32),
         sorted({4, 4}, DType::int32);
  k.embedding_backward(ids, 2, dropout, d_out, d_table, d_positions, sorted);
  const auto forward = [&](const Tensor& t, const Tensor& p) {
    Tensor out({4, 5}, DType::fp32);
    k.embedding_forward(ids, t, p, 2, dropout, out);
    return out;
  };
  CHECK(deviation(d_table.values(),
                  slopes(table, d, [&](const Tensor& t) { return forward(t, positions); })) < 1e-4);
  CHECK(deviation(d_positions.values(),
                  slopes(positions, d, [&](const Tensor& p) { return forward(table, p); })) < 1e-4);
  Tensor masked(d.shape, DType::fp32);
  k.dropout(d, dropout, false, masked);
  CHECK(d_out == masked);
}

TEST_CASE("an id outside of the table is bad input and is named") {
  const Tensor table({5, 2}, DType::fp32);
  Tensor out({1, 2}, DType::fp32), d_table({5, 2}, DType::fp32), sorted({4, 1}, DType::int32);
  for (const int id : {-1, 5}) {
    const Tensor ids({1}, DType::int32, id);
    const std::string message =
        "token id " + std::to_string(id) + " is not below the vocabulary's 5 rows";
    CHECK_THROWS_WITH_AS(k.embedding_forward(ids, table, {}, 1, {}, out), message.c_str(), Error);
    CHECK_THROWS_AS(k.embedding_backward(ids, 1, {}, out, d_table, {}, sorted), Error);
  }
}

TEST_CASE("no tokens embed to nothing") {
  const Tensor ids({0}, DType::int32), table({5, 2}, DType::fp32);
  Tensor out({0, 2}, DType::fp32), d_table({5, 2}, DType::fp32, 3), sorted({4, 0}, DType::int32);
  k.embedding_forward(ids, table, {}, 1, {}, out);
  k.embedding_backward(ids, 1, {}, out, d_table, {}, sorted);
  CHECK(d_table == Tensor({5, 2}, DType::fp32, 3));
}

}  // namespace plimsoll::kernels::test
