#include <array>
#include <limits>
#include <numeric>

#include "kernels/host/blocks.h"
#include "kernels/host/soft_cap.h"

namespace plimsoll::kernels::host {

namespace {

// Where a row's logits begin.
std::int64_t start_of(const ConstColumns& logits, std::int64_t row) {
  return row * logits.stride() + logits.first;
}

// `n` of them from column `first` on.
void read_logits(const ConstColumns& logits, std::int64_t row, float cap, std::int64_t first,
                 std::int64_t n, float* v) {
  read(logits.tensor, start_of(logits, row) + first, n, v);
  if (cap == 0) return;
  for (std::int64_t i = 0; i < n; ++i) v[i] = soft_capped(v[i], cap);
}

float logsumexp_of(const ConstColumns& logits, std::int64_t row, float cap) {
  float v[kBlock];
  float most = -std::numeric_limits<float>::infinity(), sum = 0;
  in_blocks(logits.width, [&](std::int64_t first, std::int64_t n) {
    read_logits(logits, row, cap, first, n, v);
    for (std::int64_t i = 0; i < n; ++i) most = std::max(most, v[i]);
  });
  in_blocks(logits.width, [&](std::int64_t first, std::int64_t n) {
    read_logits(logits, row, cap, first, n, v);
    float block = 0;
    for (std::int64_t i = 0; i < n; ++i) block += std::exp(v[i] - most);
    sum += block;
  });
  return most + std::log(sum);
}

void become_gradient(const Columns& logits, std::int64_t row, std::int32_t target, float factor,
                     float cap, float logsumexp) {
  in_blocks(logits.width, [&](std::int64_t first, std::int64_t n) {
    float v[kBlock];
    read_logits(logits, row, cap, first, n, v);
    for (std::int64_t i = 0; i < n; ++i) {
      const float slope = cap > 0 ? soft_cap_slope(v[i], cap) * factor : factor;
      v[i] = (std::exp(v[i] - logsumexp) - (first + i == target ? 1.0f : 0.0f)) * slope;
    }
    write(v, start_of(logits, row) + first, n, logits.tensor);
  });
}
void become_zero(const Columns& logits, std::int64_t row) {
  in_blocks(logits.width, [&](std::int64_t first, std::int64_t n) {
    const float zeros[kBlock] = {};
    write(zeros, start_of(logits, row) + first, n, logits.tensor);
  });
}

void check_target(std::int32_t target, std::int64_t width) {
  check(target >= 0 && target < width, ErrorKind::bad_input, [&] {
    return "target " + std::to_string(target) + " is neither ignored nor below the " +
           std::to_string(width) + " logits of a row";
  });
}

void cross_entropy(ConstTensorView targets, std::int32_t ignore_index, bool gradient, float factor,
                   float cap, Columns logits, TensorView losses, TensorView logsumexp) {
  const std::int64_t rows = targets.elements(), width = logits.width;
  expect(logits.rows() == rows && losses.elements() == rows &&
             (!logsumexp || logsumexp.elements() == rows),
         "cross_entropy", "logits, targets, losses have the same rows");
  const std::int32_t* target = int32_of(targets);
  float* loss = fp32_of(losses);
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool ignored = target[r] == ignore_index;
    if (!ignored) check_target(target[r], width);
    const float sum = ignored && !logsumexp ? 0 : logsumexp_of(logits, r, cap);
    if (logsumexp) fp32_of(logsumexp)[r] = sum;
    float of_target = sum;
    if (!ignored) read_logits(logits, r, cap, target[r], 1, &of_target);
    loss[r] = ignored ? 0 : sum - of_target;
    if (!gradient) continue;
    if (ignored)
      become_zero(logits, r);
    else
      become_gradient(logits, r, target[r], factor, cap, sum);
  }
}

void cross_entropy_backward(ConstTensorView targets, std::int32_t ignore_index, float factor,
                            float cap, ConstTensorView logsumexp, Columns logits) {
  const std::int64_t rows = targets.elements(), width = logits.width;
  expect(logits.rows() == rows && logsumexp.elements() == rows, "cross_entropy_backward",
         "logits, targets, logsumexp have the same rows");
  const std::int32_t* target = int32_of(targets);
  for (std::int64_t r = 0; r < rows; ++r) {
    if (target[r] == ignore_index) {
      become_zero(logits, r);
      continue;
    }
    check_target(target[r], width);
    become_gradient(logits, r, target[r], factor, cap, fp32_of(logsumexp)[r]);
  }
}

void soft_cap(float cap, TensorView x) {
  in_blocks(x.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock];
    read(x, first, n, v);
    for (std::int64_t i = 0; i < n; ++i) v[i] = soft_capped(v[i], cap);
    write(v, first, n, x);
  });
}

void loss_sum(ConstTensorView losses, double factor, TensorView sum) {
  const float* loss = fp32_of(losses);
  std::array<double, kLossSums> sums{};
  for (std::int64_t r = 0; r < losses.elements(); ++r)
    sums[static_cast<std::size_t>(r % kLossSums)] += loss[r];
  *fp64_of(sum) += factor * std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

void add_loss(KernelTable& table) {
  table.cross_entropy = cross_entropy;
  table.cross_entropy_backward = cross_entropy_backward;
  table.soft_cap = soft_cap;
  table.loss_sum = loss_sum;
}

}  // namespace plimsoll::kernels::host
