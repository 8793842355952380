#include <cmath>
#include <limits>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

namespace {
const KernelTable& k = host_kernels();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
}  // namespace

TEST_CASE("losses and their gradients are PyTorch's; the second half of a chunk gives the same") {
  for_goldens("loss", [](const Json& c, DType dtype) {
    const float factor = c["arguments"]["factor"];
    const Tensor logits = input(c, "logits", dtype), targets = input(c, "targets", dtype);
    const std::int64_t rows = targets.elements();
    Tensor losses({rows}, DType::fp32, 7), sums({rows}, DType::fp32, 7),
        once_more({rows}, DType::fp32);
    Tensor forward = logits;
    k.cross_entropy(targets, kIgnoreIndex, false, factor, 0, forward, losses, sums);
    CHECK(forward == logits);
    CHECK_NEAR(losses, c["out"]["losses"], 1e-6);
    CHECK_NEAR(sums, c["out"]["logsumexp"], 1e-6);
    Tensor full = logits;
    k.cross_entropy(targets, kIgnoreIndex, true, factor, 0, full, once_more, {});
    CHECK(once_more == losses);
    CHECK_NEAR(full, c["out"]["d_logits"], once(dtype));
    Tensor chunk = logits;
    k.cross_entropy_backward(targets, kIgnoreIndex, factor, 0, sums, chunk);
    CHECK(chunk == full);
  });
}

TEST_CASE("chunks of the rows give the bits of all rows at once") {
  for (const DType dtype : kStorage) {
    const Tensor logits = drawn({7, 600}, dtype, 1),
                 targets({7}, DType::int32, {0, 599, 3, -100, 512, 511, 1});
    Tensor all = logits, chunked = logits, losses({7}, DType::fp32), parts({7}, DType::fp32);
    k.cross_entropy(targets, kIgnoreIndex, true, 0.5f, 0, all, losses, {});
    for (const auto& [first, count] : {std::pair{0, 3}, {3, 3}, {6, 1}})
      k.cross_entropy(ConstTensorView(targets).rows(first, count), kIgnoreIndex, true, 0.5f, 0,
                      TensorView(chunked).rows(first, count), TensorView(parts).rows(first, count),
                      {});
    CHECK(all == chunked);
    CHECK(losses == parts);
  }
}

TEST_CASE("where every target is ignored the loss and the gradient are zero, even of NaN") {
  for (const DType dtype : kStorage) {
    Tensor logits({3, 4}, dtype, std::numeric_limits<double>::quiet_NaN()),
        losses({3}, DType::fp32, 7);
    const Tensor targets({3}, DType::int32, -100);
    k.cross_entropy(targets, kIgnoreIndex, true, 1, 0, logits, losses, {});
    CHECK(losses == Tensor({3}, DType::fp32, 0.0));
    CHECK(logits == Tensor({3, 4}, dtype, 0.0));
  }
}

TEST_CASE("gradients of the loss are the slopes of its sum") {
  const Tensor logits = drawn({2, 5}, DType::fp32, 3), targets({2}, DType::int32, {4, 0});
  Tensor d = logits, losses({2}, DType::fp32);
  k.cross_entropy(targets, kIgnoreIndex, true, 1, 0, d, losses, {});
  const auto forward = [&](const Tensor& at) {
    Tensor copy = at, l({2}, DType::fp32);
    k.cross_entropy(targets, kIgnoreIndex, false, 1, 0, copy, l, {});
    return l;
  };
  CHECK(deviation(d.values(), slopes(logits, Tensor({2}, DType::fp32, 1), forward)) < 1e-3);
}

// exp(1000) is inf; the maximum is taken out first. [1000, 0]: loss of 0 is log(1 + e^-1000) = 0,
// of 1 it is 1000. A logit of -inf has probability 0; inf or NaN makes its row NaN.
TEST_CASE("large logits do not overflow, and what is not finite stays in its row") {
  Tensor logits(
      {5, 2}, DType::fp32,
      {1000, 0, 1000, 0, -kInfinity, 3, kInfinity, 0, std::numeric_limits<double>::quiet_NaN(), 0});
  const Tensor targets({5}, DType::int32, {0, 1, 1, 0, 0});
  Tensor losses({5}, DType::fp32);
  k.cross_entropy(targets, kIgnoreIndex, true, 1, 0, logits, losses, {});
  CHECK(losses.at(0) == 0);
  CHECK(losses.at(1) == 1000);
  CHECK(losses.at(2) == 0);
  CHECK(std::isnan(losses.at(3)));
  CHECK(std::isnan(losses.at(4)));
  CHECK(logits.at(2) == 1);
  CHECK(logits.at(3) == -1);
  CHECK(logits.at(4) == 0);
}

TEST_CASE("a target outside of the vocabulary is bad input and is named") {
  for (const int target : {-1, 2}) {
    Tensor logits({1, 2}, DType::fp32), losses({1}, DType::fp32), sums({1}, DType::fp32);
    const Tensor targets({1}, DType::int32, target);
    const std::string message =
        "target " + std::to_string(target) + " is neither ignored nor below the 2 logits of a row";
    CHECK_THROWS_WITH_AS(k.cross_entropy(targets, kIgnoreIndex, true, 1, 0, logits, losses, {}),
                         message.c_str(), Error);
    CHECK_THROWS_AS(k.cross_entropy_backward(targets, kIgnoreIndex, 1, 0, sums, logits), Error);
  }
}

// 2^24 + 1 is no fp32: the sum is kept in fp64.
TEST_CASE("losses are summed in fp64 and added to what is there") {
  const Tensor losses({2}, DType::fp32, {16777216, 1});
  Tensor sum({1}, DType::fp64, 0.5);
  k.loss_sum(losses, 2, sum);
  CHECK(sum.at(0) == 2 * 16777217.0 + 0.5);
}

// 256 sums, and then these: 2^60 and -2^60 meet before 1 is added, which one sum would lose.
TEST_CASE("losses 256 rows apart are summed first") {
  Tensor losses({600}, DType::fp32, 0.0);
  losses.set(0, 0x1p60);
  losses.set(1, 1);
  losses.set(256, -0x1p60);
  losses.set(599, 0.5);
  Tensor sum({1}, DType::fp64, 0.0);
  k.loss_sum(losses, 1, sum);
  CHECK(sum.at(0) == 1.5);
}

}  // namespace plimsoll::kernels::test
