// LayerNorm, RMSNorm, and the sums over rows that become gradients of parameters.
#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

namespace {

struct Statistics {
  float mean = 0;
  float inverse = 1;  // of the standard deviation, or of the root mean square
};

struct Norm {
  const char* op;
  bool centred;  // LayerNorm
  float offset = 0;  // added to the weight

  std::int64_t columns() const { return centred ? 2 : 1; }
  Statistics saved(const float* statistics, std::int64_t row) const {
    return centred ? Statistics{statistics[2 * row], statistics[2 * row + 1]}
                   : Statistics{0, statistics[row]};
  }
  void save(const Statistics& s, std::int64_t row, float* statistics) const {
    if (centred) statistics[2 * row] = s.mean;
    statistics[columns() * row + columns() - 1] = s.inverse;
  }
};
constexpr Norm kLayerNorm{"layer_norm", true};
constexpr Norm rms_norm(float offset) {
  return {"rms_norm", false, offset};
}

// A visit of `row` in blocks widened to fp32: visit(first column, count, values).
template <class Visit>
void in_row(const ConstTensorView& x, std::int64_t row, std::int64_t width, Visit visit) {
  in_blocks(width, [&](std::int64_t first, std::int64_t n) {
    float values[kBlock];
    read(x, row * width + first, n, values);
    visit(first, n, values);
  });
}

Statistics statistics_of(const Norm& norm, const ConstTensorView& x, std::int64_t row,
                         std::int64_t width, float eps) {
  constexpr std::array<float, kBlock> ones = [] {
    std::array<float, kBlock> a{};
    a.fill(1);
    return a;
  }();
  const auto count = static_cast<float>(width);
  Statistics s;
  if (norm.centred) {
    float sum = 0;
    in_row(x, row, width,
           [&](std::int64_t, std::int64_t n, float* v) { sum += dot(v, ones.data(), n); });
    s.mean = sum / count;
  }
  float squares = 0;
  in_row(x, row, width, [&](std::int64_t, std::int64_t n, float* v) {
    for (std::int64_t i = 0; i < n; ++i) v[i] -= s.mean;
    squares += dot(v, v, n);
  });
  s.inverse = 1 / std::sqrt(squares / count + eps);
  return s;
}

void normalize(const Norm& norm, const Statistics& s, const ConstTensorView& x,
               const ConstTensorView& weight, const ConstTensorView& bias, std::int64_t row,
               const TensorView& y) {
  const std::int64_t width = weight.elements();
  in_row(x, row, width, [&](std::int64_t first, std::int64_t n, float* v) {
    float w[kBlock], b[kBlock] = {};
    read(weight, first, n, w);
    if (bias) read(bias, first, n, b);
    for (std::int64_t i = 0; i < n; ++i)
      v[i] = (v[i] - s.mean) * s.inverse * (norm.offset + w[i]) + b[i];
    write(v, row * width + first, n, y);
  });
}

std::int64_t rows_of(const Norm& norm, const ConstTensorView& x, const ConstTensorView& weight,
                     const ConstTensorView& bias, const ConstTensorView& statistics) {
  const std::int64_t width = weight.elements();
  expect(width > 0 && x.elements() % width == 0, norm.op, "x has rows as wide as the weight");
  expect(!bias || bias.elements() == width, norm.op, "the bias is as wide as the weight");
  const std::int64_t rows = x.elements() / width;
  expect(!statistics || statistics.elements() == rows * norm.columns(), norm.op,
         "statistics have one row for each of x");
  return rows;
}

void forward(const Norm& norm, const ConstTensorView& x, const ConstTensorView& weight,
             const ConstTensorView& bias, float eps, const TensorView& y,
             const TensorView& statistics) {
  const std::int64_t rows = rows_of(norm, x, weight, bias, statistics);
  expect(y.elements() == x.elements(), norm.op, "y is as large as x");
  for (std::int64_t r = 0; r < rows; ++r) {
    const Statistics s = statistics_of(norm, x, r, weight.elements(), eps);
    if (statistics) norm.save(s, r, fp32_of(statistics));
    normalize(norm, s, x, weight, bias, r, y);
  }
}

void again(const Norm& norm, const ConstTensorView& x, const ConstTensorView& statistics,
           const ConstTensorView& weight, const ConstTensorView& bias, const TensorView& y) {
  const std::int64_t rows = rows_of(norm, x, weight, bias, statistics);
  expect((statistics || rows == 0) && y.elements() == x.elements(), norm.op, "y is as large as x");
  for (std::int64_t r = 0; r < rows; ++r)
    normalize(norm, norm.saved(fp32_of(statistics), r), x, weight, bias, r, y);
}

// Sums of rows
// -------------------------------------------------------------------------------------

// gradient += the partials [P, width], one after another.
void add_partials(const float* partial, std::int64_t count, std::int64_t width,
                  const TensorView& gradient) {
  in_blocks(width, [&](std::int64_t first, std::int64_t n) {
    float sum[kBlock] = {}, old[kBlock];
    for (std::int64_t p = 0; p < count; ++p) add_scaled(1, partial + p * width + first, n, sum);
    read(gradient, first, n, old);
    for (std::int64_t i = 0; i < n; ++i) old[i] += sum[i];
    write(old, first, n, gradient);
  });
}

struct Partials {
  float* weight = nullptr;
  float* bias = nullptr;
  std::int64_t count = 0;
};

Partials cleared_partials(const Norm& norm, const TensorView& partial, std::int64_t width,
                          bool wanted) {
  if (!wanted) return {};
  const std::int64_t sums = norm.centred ? 2 : 1;
  expect(partial && partial.elements() >= sums * width && partial.elements() % (sums * width) == 0,
         norm.op, "partial sums are rows as wide as the weight");
  float* data = fp32_of(partial);
  std::fill(data, data + partial.elements(), 0.0f);
  const std::int64_t count = partial.elements() / (sums * width);
  return {data, norm.centred ? data + count * width : nullptr, count};
}

struct Backward {
  Norm norm;
  ConstTensorView x, weight, d_y;
  bool accumulate;
  TensorView d_x;
  Partials partials;
};

void backward_row(const Backward& b, const Statistics& s, std::int64_t row) {
  const std::int64_t width = b.weight.elements();
  const std::int64_t at = b.partials.count > 0 ? row % b.partials.count * width : 0;
  float sum_g = 0, sum_gn = 0;
  float n[kBlock], g[kBlock];
  const auto load = [&](std::int64_t first, std::int64_t count, const float* x, float* d) {
    float w[kBlock];
    read(b.weight, first, count, w);
    read(b.d_y, row * width + first, count, d);
    for (std::int64_t i = 0; i < count; ++i) {
      n[i] = (x[i] - s.mean) * s.inverse;
      g[i] = d[i] * (b.norm.offset + w[i]);
    }
  };
  in_row(b.x, row, width, [&](std::int64_t first, std::int64_t count, float* x) {
    float d[kBlock];
    load(first, count, x, d);
    for (std::int64_t i = 0; i < count; ++i) sum_g += g[i];
    sum_gn += dot(g, n, count);
    if (b.partials.weight)
      for (std::int64_t i = 0; i < count; ++i) b.partials.weight[at + first + i] += d[i] * n[i];
    if (b.partials.bias) add_scaled(1, d, count, b.partials.bias + at + first);
  });
  if (!b.d_x) return;
  const float mean_g = b.norm.centred ? sum_g / static_cast<float>(width) : 0;
  const float mean_gn = sum_gn / static_cast<float>(width);
  in_row(b.x, row, width, [&](std::int64_t first, std::int64_t count, float* x) {
    float d[kBlock];
    load(first, count, x, d);
    if (b.accumulate) read(b.d_x, row * width + first, count, d);
    for (std::int64_t i = 0; i < count; ++i) {
      const float dx = s.inverse * (g[i] - mean_g - n[i] * mean_gn);
      d[i] = b.accumulate ? d[i] + dx : dx;
    }
    write(d, row * width + first, count, b.d_x);
  });
}

void backward(const Norm& norm, const ConstTensorView& x, const ConstTensorView& statistics,
              const ConstTensorView& weight, const ConstTensorView& d_y, bool accumulate,
              const TensorView& d_x, const TensorView& d_weight, const TensorView& d_bias,
              const TensorView& partial) {
  const std::int64_t rows = rows_of(norm, x, weight, d_bias, statistics);
  const std::int64_t width = weight.elements();
  expect((statistics || rows == 0) && d_y.elements() == x.elements() &&
             (!d_x || d_x.elements() == x.elements()) &&
             (!d_weight || d_weight.elements() == width),
         norm.op, "gradients are as large as what they are of");
  const Partials partials = cleared_partials(norm, partial, width, d_weight || d_bias);
  const Backward b{norm, x, weight, d_y, accumulate, d_x, partials};
  for (std::int64_t r = 0; r < rows; ++r) backward_row(b, norm.saved(fp32_of(statistics), r), r);
  if (d_weight) add_partials(partials.weight, partials.count, width, d_weight);
  if (d_bias) add_partials(partials.bias, partials.count, width, d_bias);
}

// The table's entries
// ------------------------------------------------------------------------------

void layer_norm_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias, float eps,
                        TensorView y, TensorView statistics) {
  forward(kLayerNorm, x, weight, bias, eps, y, statistics);
}
void layer_norm_again(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                      ConstTensorView bias, TensorView y) {
  again(kLayerNorm, x, statistics, weight, bias, y);
}
void layer_norm_backward(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                         ConstTensorView d_y, bool accumulate, TensorView d_x, TensorView d_weight,
                         TensorView d_bias, TensorView partial) {
  backward(kLayerNorm, x, statistics, weight, d_y, accumulate, d_x, d_weight, d_bias, partial);
}
void rms_norm_forward(ConstTensorView x, ConstTensorView weight, float offset, float eps,
                      TensorView y, TensorView statistics) {
  forward(rms_norm(offset), x, weight, {}, eps, y, statistics);
}
void rms_norm_again(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                    float offset, TensorView y) {
  again(rms_norm(offset), x, statistics, weight, {}, y);
}
void rms_norm_backward(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                       float offset, ConstTensorView d_y, bool accumulate, TensorView d_x,
                       TensorView d_weight, TensorView partial) {
  backward(rms_norm(offset), x, statistics, weight, d_y, accumulate, d_x, d_weight, {}, partial);
}

void bias_add(ConstTensorView bias, TensorView y) {
  const std::int64_t width = bias.elements();
  expect(width > 0 && y.elements() % width == 0, "bias_add", "y has rows as wide as the bias");
  for (std::int64_t r = 0; r < y.elements() / width; ++r)
    in_row(y, r, width, [&](std::int64_t first, std::int64_t n, float* v) {
      float b[kBlock];
      read(bias, first, n, b);
      add_scaled(1, b, n, v);
      write(v, r * width + first, n, y);
    });
}

void bias_backward(ConstColumns d_y, TensorView d_bias, TensorView partial) {
  const std::int64_t width = d_bias.elements();
  expect(width > 0 && (d_y.rows() == 0 || d_y.width == width), "bias_backward",
         "d_y has rows as wide as the bias");
  const Norm one{"bias_backward", false};
  const Partials partials = cleared_partials(one, partial, width, true);
  for (std::int64_t r = 0; r < d_y.rows(); ++r)
    in_blocks(width, [&](std::int64_t first, std::int64_t n) {
      float v[kBlock];
      read(d_y.tensor, r * d_y.stride() + d_y.first + first, n, v);
      add_scaled(1, v, n, partials.weight + r % partials.count * width + first);
    });
  add_partials(partials.weight, partials.count, width, d_bias);
}

}  // namespace

void add_norms(KernelTable& table) {
  table.layer_norm_forward = layer_norm_forward;
  table.layer_norm_again = layer_norm_again;
  table.layer_norm_backward = layer_norm_backward;
  table.rms_norm_forward = rms_norm_forward;
  table.rms_norm_again = rms_norm_again;
  table.rms_norm_backward = rms_norm_backward;
  table.bias_add = bias_add;
  table.bias_backward = bias_backward;
}

}  // namespace plimsoll::kernels::host
