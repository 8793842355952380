// What a profile says of each call: bytes and FLOPs by hand, seconds of a clock that the test sets.
#include "runtime/profile.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <functional>
#include <thread>

namespace plimsoll::runtime {
namespace {

using kernels::KernelTable;

// Laps of 1, 2, 4, 8 ... seconds: the odd ones are of what lies between two calls.
class FakeStopwatch final : public Stopwatch {
 public:
  void mark() override { ++marks_; }
  std::vector<double> laps() override {
    std::vector<double> seconds;
    for (int i = 1; i < marks_; ++i) seconds.push_back(static_cast<double>(1 << (i - 1)));
    return seconds;
  }

 private:
  int marks_ = 0;
};

template <class Function>
struct Nothing;
template <class... A>
struct Nothing<void (*)(A...)> {
  static void call(A...) {}
};
template <class Function>
void ignore(Function& entry) {
  entry = Nothing<Function>::call;
}

// Its kernels do nothing, so that operands need no memory.
const KernelTable& idle_kernels() {
  static const KernelTable table = [] {
    KernelTable t{};
    ignore(t.embedding_forward), ignore(t.layer_norm_backward), ignore(t.linear_forward);
    ignore(t.linear_backward_input), ignore(t.linear_backward_weight), ignore(t.dropout);
    ignore(t.flash_forward), ignore(t.flash_backward), ignore(t.attention_scores);
    ignore(t.attention_values), ignore(t.attention_values_backward);
    ignore(t.attention_probabilities_backward), ignore(t.attention_scores_backward);
    ignore(t.route), ignore(t.experts_forward), ignore(t.experts_backward_input);
    ignore(t.experts_backward_weight), ignore(t.experts_sum), ignore(t.adamw);
    ignore(t.sum_of_squares), ignore(t.dequantize), ignore(t.scale), ignore(t.float8_scale);
    ignore(t.to_float8), ignore(t.float8_gemm), ignore(t.eigenvectors);
    return t;
  }();
  return table;
}

class IdleDevice final : public Device {
 public:
  models::Device kind() const override { return models::Device::cpu; }
  std::string name() const override { return "idle"; }
  const KernelTable& kernels() const override { return *table_; }
  std::unique_ptr<Region> reserve(Bytes) override { return nullptr; }
  void copy(void*, const void*, Bytes) override {}
  void copy_in(void*, const void*, Bytes) override {}
  void copy_out(void*, const void*, Bytes) override {}
  void fill_bytes(void*, unsigned char, Bytes) override {}
  void synchronize() override {}
  std::unique_ptr<Stopwatch> stopwatch() override { return std::make_unique<FakeStopwatch>(); }
  void use(const KernelTable& table) { table_ = &table; }

 private:
  const KernelTable* table_ = &idle_kernels();
};

std::byte somewhere[1];
kernels::TensorView view(kernels::Extents shape, DType dtype = DType::bf16) {
  return {somewhere, dtype, shape};
}
const kernels::TensorView kScratch = view({1000}, DType::fp32);

// The one cost that `call` has.
KernelCost cost_of(const std::function<void(const KernelTable&)>& call) {
  IdleDevice device;
  Profile profile(device);
  const Ledger ledger;
  const KernelTable& table = profile.device().kernels();
  profile.begin(ledger);
  call(table);
  const std::vector<KernelCost> costs = profile.end();
  REQUIRE(costs.size() == 1);
  return costs[0];
}

void check_cost(const char* kernel, double bytes, double flops,
                const std::function<void(const KernelTable&)>& call) {
  CAPTURE(kernel);
  const KernelCost cost = cost_of(call);
  CHECK(cost.kernel == kernel);
  CHECK(cost.bytes == bytes);
  CHECK(cost.flops == flops);
}

// x [6, 8] has 96 bytes, w [10, 8] 160, y [6, 10] 120, a bias of fp32 [10] 40; 2 · 6 · 8 · 10
// FLOPs.
TEST_CASE("a linear reads x, w and bias and writes y, and reads what it adds to") {
  const auto x = view({6, 8}), w = view({10, 8}), y = view({6, 10}), bias = view({10}, DType::fp32);
  for (const bool adds : {false, true}) {
    const kernels::LinearOptions options{.accumulate = adds};
    check_cost("linear_forward", 96 + 160 + 40 + (adds ? 240 : 120), 960,
               [&](const KernelTable& k) { k.linear_forward(x, w, bias, options, y, kScratch); });
    check_cost("linear_backward_input", 120 + 160 + (adds ? 192 : 96), 960,
               [&](const KernelTable& k) { k.linear_backward_input(y, w, options, x, kScratch); });
    check_cost("linear_backward_weight", 120 + 96 + (adds ? 320 : 160), 960,
               [&](const KernelTable& k) { k.linear_backward_weight(y, x, options, w, kScratch); });
  }
  // Without a bias; and of a wider tensor its own ten columns.
  check_cost("linear_forward", 96 + 160 + 120, 960, [&](const KernelTable& k) {
    k.linear_forward(x, w, {}, {}, kernels::Columns(view({6, 30}), 10, 10), kScratch);
  });
}

// a [6, 16] of 96 bytes, b [10, 16] of 160, each with a pair of scales; y [6, 10] in bf16.
TEST_CASE("a linear in 8 bits reads codes and scales, and making them reads what they are of") {
  const auto scale = view({2}, DType::fp32), x = view({6, 16});
  const auto codes = view({6, 16}, DType::fp8_e4m3), turned = view({16, 6}, DType::fp8_e4m3);
  const kernels::Float8Matrix a{codes, scale}, b{view({10, 16}, DType::fp8_e4m3), scale};
  for (const bool adds : {false, true})
    check_cost("float8_gemm", 96 + 8 + 160 + 8 + 20 + (adds ? 240 : 120), 2 * 6 * 10 * 16,
               [&](const KernelTable& k) {
                 k.float8_gemm(a, b, view({10}), {.accumulate = adds}, view({6, 10}), kScratch);
               });
  check_cost("float8_scale", 192 + 8, 0,
             [&](const KernelTable& k) { k.float8_scale(x, DType::fp8_e4m3, scale, kScratch); });
  check_cost("to_float8", 192 + 8 + 96 + 96, 0,
             [&](const KernelTable& k) { k.to_float8(x, scale, codes, turned); });
}

// fp32 [6, 8] is 192 bytes, statistics [6, 2] 48, a row of 8 is 32.
TEST_CASE("what a call adds to by an argument of its own is read, too") {
  const auto x = view({6, 8}, DType::fp32), row = view({8}, DType::fp32);
  const auto statistics = view({6, 2}, DType::fp32);
  const kernels::Routes routes{view({5}, DType::int32), view({12}, DType::int32),
                               view({12}, DType::int32), view({12}, DType::int32), 2};
  for (const bool adds : {false, true}) {
    check_cost("layer_norm_backward", 192 + 48 + 32 + 192 + (adds ? 384 : 192) + 64, 0,
               [&](const KernelTable& k) {
                 k.layer_norm_backward(x, statistics, row, x, adds, x, row, {}, kScratch);
               });
    check_cost("dropout", 192 + (adds ? 384 : 192), 0,
               [&](const KernelTable& k) { k.dropout(x, {}, adds, x); });
    check_cost("experts_sum", 192 + (adds ? 192 : 96), 0, [&](const KernelTable& k) {
      k.experts_sum(routes, view({12, 8}), adds, view({6, 8}));
    });
  }
  // As many rows of the table as there are tokens: 6 ids, and 96 bytes read and written.
  check_cost("embedding_forward", 24 + 192, 0, [&](const KernelTable& k) {
    k.embedding_forward(view({6}, DType::int32), view({500, 8}), {}, 6, {}, view({6, 8}));
  });
  check_cost("scale", 2 * 96, 0, [&](const KernelTable& k) { k.scale(2, view({6, 8})); });
}

// Two sequences of four tokens and three heads: 2 · 3 · (1 + 2 + 3 + 4) = 60 pairs, in a window of
// two 2 · 3 · (1 + 2 + 2 + 2) = 42; a GEMM of eight columns makes 2 · 8 FLOPs of each.
TEST_CASE("attention multiplies the pairs that its mask leaves") {
  const auto q = view({8, 24}), kv = view({8, 8}), p = view({2, 3, 4, 4});
  const auto logsumexp = view({2, 3, 4}, DType::fp32);
  for (const std::int64_t window : {0, 2}) {
    const kernels::AttentionShape s{2, 4, 3, 1, 8, window};
    const double gemm = (window == 0 ? 60 : 42) * 2 * 8;
    // q 384 bytes, k and v 128 each; p 192, log-sum-exp 96.
    check_cost("flash_forward", 384 + 128 + 128 + 384 + 96, 2 * gemm,
               [&](const KernelTable& k) { k.flash_forward(s, {}, q, kv, kv, q, logsumexp); });
    check_cost("flash_backward", 3 * 384 + 2 * 128 + 96 + 384 + 2 * 128, 5 * gemm,
               [&](const KernelTable& k) {
                 k.flash_backward(s, {}, q, q, kv, kv, q, logsumexp, q, kv, kv, kScratch);
               });
    check_cost("attention_scores", 384 + 128 + 192, gemm,
               [&](const KernelTable& k) { k.attention_scores(s, q, kv, p); });
    check_cost("attention_values", 192 + 128 + 384, gemm,
               [&](const KernelTable& k) { k.attention_values(s, p, kv, q); });
    check_cost("attention_values_backward", 192 + 384 + 128, gemm,
               [&](const KernelTable& k) { k.attention_values_backward(s, p, q, kv); });
    check_cost("attention_probabilities_backward", 384 + 128 + 192, gemm,
               [&](const KernelTable& k) { k.attention_probabilities_backward(s, q, kv, p); });
    check_cost("attention_scores_backward", 192 + 384 + 128 + 384 + 128, 2 * gemm,
               [&](const KernelTable& k) { k.attention_scores_backward(s, p, q, kv, q, kv); });
  }
}

// Four experts, two of them for each of six tokens: twelve rows. x [6, 8], weights [4, 10, 8] of
// 640 bytes, y [12, 10] of 240, d_x [12, 8] of 192; 2 · 12 · 8 · 10 FLOPs.
TEST_CASE("experts multiply a row for each token that comes to them") {
  const kernels::Routes routes{view({5}, DType::int32), view({12}, DType::int32),
                               view({12}, DType::int32), view({12}, DType::int32), 2};
  const kernels::RoutedRows x{view({6, 8}), true}, d_y{view({12, 10}), false};
  const auto w = view({4, 10, 8});
  check_cost("route", 48 + 4 * (5 + 3 * 12) + 48, 0, [&](const KernelTable& k) {
    k.route(view({6, 4}), true, routes, view({12}, DType::fp32));
  });
  check_cost("experts_forward", 96 + 640 + 240, 1920, [&](const KernelTable& k) {
    k.experts_forward(routes, x, w, view({12, 10}), kScratch);
  });
  check_cost("experts_backward_input", 240 + 640 + 192, 1920, [&](const KernelTable& k) {
    k.experts_backward_input(routes, d_y, w, view({12, 8}), kScratch);
  });
  check_cost("experts_backward_weight", 240 + 96 + 2 * 640, 1920,
             [&](const KernelTable& k) { k.experts_backward_weight(routes, d_y, x, w, kScratch); });
}

TEST_CASE("an optimizer reads and writes all that it keeps, and reads the gradient") {
  const auto fp32 = view({100}, DType::fp32), codes = view({100}, DType::uint8);
  const auto scales = view({1}, DType::fp32);
  kernels::OptimizerTensors t{.weight = view({100}),
                              .master = fp32,
                              .first_moment = fp32,
                              .second_moment = fp32,
                              .gradient = view({100})};
  check_cost("adamw", 2 * (200 + 400 + 400 + 400) + 200, 0,
             [&](const KernelTable& k) { k.adamw(t, {}); });
  t = {.weight = view({100}),
       .master = {},
       .first_moment = codes,
       .second_moment = codes,
       .first_scales = scales,
       .second_scales = view({2}, DType::fp32),
       .gradient = fp32};
  check_cost("adamw", 2 * (200 + 100 + 100 + 4 + 8) + 400, 0,
             [&](const KernelTable& k) { k.adamw(t, {}); });
  const std::array<kernels::SquaredPiece, 2> pieces{{{fp32, 0, {}}, {view({100}), 0, {}}}};
  check_cost("sum_of_squares", 400 + 200, 0,
             [&](const KernelTable& k) { k.sum_of_squares(pieces, 64); });
  const kernels::PackedWeight packed{view({50}, DType::uint8), view({2}, DType::uint8),
                                     view({3}, DType::fp32), scales};
  check_cost("dequantize", 50 + 2 + 12 + 4 + 200, 0,
             [&](const KernelTable& k) { k.dequantize(packed, view({100})); });
}

TEST_CASE("each call has its op, its place in the order and its own time") {
  IdleDevice idle;
  Profile profile(idle);
  Device& device = profile.device();
  const KernelTable& k = device.kernels();
  Ledger ledger;
  ledger.begin_step();
  k.scale(1, view({1}));  // before: nobody measures
  for (int again = 0; again < 2; ++again) {
    profile.begin(ledger);
    device.copy(somewhere, somewhere, Bytes(10));
    ledger.begin_op("head", models::Phase::backward);
    device.copy_in(somewhere, somewhere, Bytes(10));
    device.fill_bytes(somewhere, 0, Bytes(10));
    std::thread([&] { device.kernels().scale(1, view({1})); }).join();  // another rank's
    ledger.end_op();
    device.copy_out(somewhere, somewhere, Bytes(10));  // waits for all that is measured
    k.scale(1, view({1}));
    const std::vector<KernelCost> costs = profile.end();
    REQUIRE(costs.size() == 4);
    const char* kernels[] = {"copy", "copy_in", "fill_bytes", "scale"};
    const double bytes[] = {20, 10, 10, 4}, seconds[] = {1, 4, 16, 64};
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(costs[i].kernel == kernels[i]);
      CHECK(costs[i].bytes == bytes[i]);
      CHECK(costs[i].flops == 0);
      CHECK(costs[i].seconds == seconds[i]);
      CHECK(costs[i].op == (i == 1 || i == 2 ? "head" : ""));
    }
    CHECK(costs[1].phase == models::Phase::backward);
  }
  k.scale(1, view({1}));
  device.copy(somewhere, somewhere, Bytes(1));
}

TEST_CASE("a measured device has every kernel") {
  IdleDevice idle;
  Profile profile(idle);
  std::array<void (*)(), sizeof(KernelTable) / sizeof(void (*)())> entries;
  static_assert(sizeof entries == sizeof(KernelTable));
  std::memcpy(entries.data(), &profile.device().kernels(), sizeof entries);
  for (const auto entry : entries) CHECK(bool(entry != nullptr));
  // But for what a build may lack, and is asked for by who needs it.
  KernelTable without = idle_kernels();
  without.eigenvectors = nullptr;
  idle.use(without);
  CHECK(bool(profile.device().kernels().eigenvectors == nullptr));
  CHECK(bool(profile.device().kernels().gram != nullptr));
}

}  // namespace
}  // namespace plimsoll::runtime
