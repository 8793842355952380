// A mixture's routing, GEMMs and gate.
#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

namespace {

struct Mixture {
  std::int64_t tokens, experts, active;
  std::int64_t rows() const { return tokens * active; }
  Tensor routes() const { return Tensor({routes_elements(experts, rows())}, DType::int32); }
};
// Experts of no rows, of one tile and of more; more experts than a warp has lanes.
constexpr Mixture kMixtures[] = {{1, 1, 1}, {5, 8, 2}, {150, 3, 2}, {70, 40, 8}};

}  // namespace

TEST_CASE("routes are the host's, and scores and their gradients") {
  for (const Mixture& m : kMixtures)
    for (const DType dtype : kStorage)
      for (const bool normalizes : {false, true}) {
        CAPTURE(m.experts);
        const Twins t = twins(
            {drawn({m.tokens, m.experts}, dtype, 1), m.routes(), Tensor({m.rows()}, DType::fp32),
             drawn({m.rows()}, DType::fp32, 2), Tensor({m.tokens, m.experts}, dtype)},
            [&](const KernelTable& k, const Views& v) {
              const Routes r = routes_in(v[1], m.experts, m.active);
              k.route(v[0], normalizes, r, v[2]);
              k.route_backward(normalizes ? ConstTensorView{} : v[0], normalizes, r, v[2], v[3],
                               v[4]);
            });
        CHECK(t.cuda[1] == t.host[1]);
        CHECK_NEAR(t.cuda[2], t.host[2], 1e-6);
        CHECK_NEAR(t.cuda[4], t.host[4], dtype == DType::fp32 ? 1e-5 : 2 * once(dtype));
      }
}

TEST_CASE("experts' GEMMs, sums and gates are the host's") {
  for (const Mixture& m : kMixtures)
    for (const DType dtype : kStorage)
      for (const auto& [hidden, width] : {std::pair{8, 16}, {33, 7}}) {
        CAPTURE(m.experts);
        CAPTURE(hidden);
        const std::vector<Tensor> operands = {drawn({m.tokens, m.experts}, DType::fp32, 1),
                                              m.routes(),
                                              Tensor({m.rows()}, DType::fp32),
                                              drawn({m.tokens, hidden}, dtype, 2),
                                              drawn({m.experts, 2 * width, hidden}, dtype, 3),
                                              Tensor({m.rows(), 2 * width}, dtype),
                                              Tensor({m.rows(), width}, dtype),
                                              drawn({m.rows(), width}, dtype, 4),
                                              Tensor({m.rows()}, DType::fp32),
                                              Tensor({m.rows(), hidden}, dtype),
                                              drawn({m.experts, 2 * width, hidden}, dtype, 5),
                                              drawn({m.tokens, hidden}, dtype, 6),
                                              Tensor({1 << 12}, DType::fp32)};
        const double limit = dtype == DType::fp32 ? 1e-5 : 2 * once(dtype);
        // Each op from the host's results, so that no difference is carried on.
        Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
          const Routes r = routes_in(v[1], m.experts, m.active);
          k.route(v[0], true, r, v[2]);
          k.experts_forward(r, {v[3], true}, v[4], v[5], v[12]);
        });
        CHECK_NEAR(t.cuda[5], t.host[5], limit);
        t = twins(t.host, [&](const KernelTable& k, const Views& v) {
          const Routes r = routes_in(v[1], m.experts, m.active);
          k.scored_gate_forward(Activation::silu, r, v[5], v[2], v[6]);
        });
        CHECK_NEAR(t.cuda[6], t.host[6], limit);
        t = twins(t.host, [&](const KernelTable& k, const Views& v) {
          const Routes r = routes_in(v[1], m.experts, m.active);
          k.scored_gate_backward(Activation::silu, r, v[5], v[2], v[7], v[8]);
        });
        for (const std::size_t i : {5u, 7u, 8u}) CHECK_NEAR(t.cuda[i], t.host[i], limit);
        t = twins(t.host, [&](const KernelTable& k, const Views& v) {
          const Routes r = routes_in(v[1], m.experts, m.active);
          k.experts_backward_weight(r, {v[5]}, {v[3], true}, v[10], v[12]);
          k.experts_backward_input(r, {v[5]}, v[4], v[9], v[12]);
        });
        CHECK_NEAR(t.cuda[10], t.host[10], limit);
        CHECK_NEAR(t.cuda[9], t.host[9], limit);
        t = twins(t.host, [&](const KernelTable& k, const Views& v) {
          k.experts_sum(routes_in(v[1], m.experts, m.active), v[9], true, v[11]);
        });
        CHECK_NEAR(t.cuda[11], t.host[11], limit);
      }
}

}  // namespace plimsoll::kernels::test
