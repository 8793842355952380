// Norms, sums over rows, activations, dropout.
#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

namespace {

// Around warps of 32, vectors of 8, blocks of 256, and the width at which a row gets a block; one
// to four of a thread's groups of eight elements; wider than a block's shared memory takes.
constexpr std::int64_t kWidths[] = {1,    8,    37,   256,  504,  768,  1000,
                                    1024, 1032, 2051, 4096, 6144, 8192, 8200};

// A row's sums are added in another order than on the host.
double close(DType dtype) {
  return dtype == DType::fp32 ? 2e-6 : once(dtype);
}

struct NormCase {
  std::int64_t rows, width;
  DType dtype;
  bool centred;
};
template <class Visit>
void for_norms(Visit visit) {
  for (const DType dtype : kStorage)
    for (const std::int64_t width : kWidths)
      for (const bool centred : {false, true}) {
        CAPTURE(name_of(dtype));
        CAPTURE(width);
        CAPTURE(centred);
        visit(NormCase{width == 8 ? 61 : width < 100 ? 21 : 5, width, dtype, centred});
      }
}

}  // namespace

TEST_CASE("norms forward are the host's, in place too, and made again they have the same bits") {
  for_norms([](const NormCase& c) {
    const std::int64_t n = c.rows * c.width;
    const std::vector<Tensor> operands = {drawn({n}, c.dtype, 1),
                                          drawn({c.width}, c.dtype, 2),
                                          c.centred ? drawn({c.width}, DType::fp32, 3) : Tensor(),
                                          Tensor({n}, c.dtype),
                                          Tensor({n}, c.dtype),
                                          Tensor({c.rows * (c.centred ? 2 : 1)}, DType::fp32)};
    const float offset = c.width % 2 == 0 ? 0 : 1;  // Llama's, Gemma's
    const Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
      if (c.centred) {
        k.layer_norm_forward(v[0], v[1], v[2], 1e-5f, v[3], v[5]);
        k.layer_norm_again(v[0], v[5], v[1], v[2], v[4]);
        k.layer_norm_forward(v[0], v[1], v[2], 1e-5f, v[0], {});
      } else {
        k.rms_norm_forward(v[0], v[1], offset, 1e-5f, v[3], v[5]);
        k.rms_norm_again(v[0], v[5], v[1], offset, v[4]);
        k.rms_norm_forward(v[0], v[1], offset, 1e-5f, v[0], {});
      }
    });
    CHECK(t.cuda[4] == t.cuda[3]);
    CHECK(t.cuda[0] == t.cuda[3]);
    // One element has no variance: (x - mean) is the rounding of the mean, times 1 / sqrt(eps).
    if (c.width == 1) return;
    CHECK_NEAR(t.cuda[3], t.host[3], close(c.dtype));
    CHECK_NEAR(t.cuda[5], t.host[5], 2e-6);
  });
}

TEST_CASE("norms backward are the host's; their weights' gradients have its bits") {
  for_norms([](const NormCase& c) {
    const std::int64_t n = c.rows * c.width, partials = 3;
    const std::vector<Tensor> operands = {
        drawn({n}, c.dtype, 1),
        drawn({c.rows * (c.centred ? 2 : 1)}, DType::fp32, 2),
        drawn({c.width}, c.dtype, 3),
        drawn({n}, c.dtype, 4),
        drawn({n}, c.dtype, 5),
        drawn({c.width}, c.dtype, 6),
        c.centred ? drawn({c.width}, DType::fp32, 7) : Tensor(),
        Tensor({(c.centred ? 2 : 1) * partials * c.width}, DType::fp32, 99.0)};
    const auto run = [&](bool accumulate, bool in_place) {
      return twins(operands, [&, in_place](const KernelTable& k, const Views& v) {
        const TensorView d_x = in_place ? v[3] : v[4];
        if (c.centred)
          k.layer_norm_backward(v[0], v[1], v[2], v[3], accumulate, d_x, v[5], v[6], v[7]);
        else
          k.rms_norm_backward(v[0], v[1], v[2], 1, v[3], accumulate, d_x, v[5], v[7]);
      });
    };
    const Twins plain = run(false, false), in_place = run(false, true), added = run(true, false);
    const Twins frozen = twins(operands, [&](const KernelTable& k, const Views& v) {
      if (c.centred)
        k.layer_norm_backward(v[0], v[1], v[2], v[3], false, v[4], {}, {}, {});
      else
        k.rms_norm_backward(v[0], v[1], v[2], 1, v[3], false, v[4], {}, {});
    });
    CHECK(frozen.cuda[4] == plain.cuda[4]);
    CHECK(in_place.cuda[3] == plain.cuda[4]);
    CHECK_NEAR(plain.cuda[4], plain.host[4], close(c.dtype));
    CHECK_NEAR(added.cuda[4], added.host[4], close(c.dtype));
    for (const Twins* t : {&plain, &in_place, &added}) {
      CHECK(t->cuda[5] == t->host[5]);
      CHECK(t->cuda[6] == t->host[6]);
    }
  });
}

TEST_CASE("a frozen norm has no weight gradient, a first one no gradient of its input") {
  const std::int64_t rows = 9, width = 40;
  const std::vector<Tensor> operands = {
      drawn({rows * width}, DType::bf16, 1), drawn({rows}, DType::fp32, 2),
      drawn({width}, DType::bf16, 3),        drawn({rows * width}, DType::bf16, 4),
      Tensor({rows * width}, DType::bf16),   drawn({width}, DType::fp32, 5),
      Tensor({2 * width}, DType::fp32)};
  const Twins frozen = twins(operands, [](const KernelTable& k, const Views& v) {
    k.rms_norm_backward(v[0], v[1], v[2], 0, v[3], false, v[4], {}, {});
  });
  CHECK_NEAR(frozen.cuda[4], frozen.host[4], once(DType::bf16));
  const Twins first = twins(operands, [](const KernelTable& k, const Views& v) {
    k.rms_norm_backward(v[0], v[1], v[2], 0, v[3], false, {}, v[5], v[6]);
  });
  CHECK(first.cuda[5] == first.host[5]);
  CHECK(first.cuda[5].bytes != operands[5].bytes);
}

TEST_CASE("biases and their gradients have the host's bits") {
  for (const DType dtype : kStorage)
    for (const std::int64_t width : kWidths) {
      CAPTURE(width);
      const std::int64_t rows = width == 8 ? 61 : 11;
      const Twins t = twins({drawn({width}, DType::fp32, 1), drawn({rows, width}, dtype, 2),
                             drawn({width}, dtype, 3), Tensor({4 * width}, DType::fp32, 7.0)},
                            [](const KernelTable& k, const Views& v) {
                              k.bias_backward(v[1], v[2], v[3]);
                              k.bias_add(v[0], v[1]);
                            });
      CHECK(t.cuda[1] == t.host[1]);
      CHECK(t.cuda[2] == t.host[2]);
    }
}

// CUDA's tanhf, erff and expf differ from the host's by 2 ulp at most.
TEST_CASE("activations and gates are the host's, forward and backward") {
  for (const DType dtype : kStorage)
    for (const std::int64_t n : kCounts) {
      CAPTURE(n);
      const double limit = dtype == DType::fp32 ? 1e-6 : once(dtype);
      for (const Activation kind :
           {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu, Activation::silu}) {
        const Twins t = twins({drawn({n}, dtype, 1), drawn({n}, dtype, 2), Tensor({n}, dtype)},
                              [&](const KernelTable& k, const Views& v) {
                                k.activation_forward(kind, v[0], v[2]);
                                k.activation_backward(kind, v[0], v[1]);
                              });
        for (const std::size_t i : {0u, 1u, 2u}) CHECK_NEAR(t.cuda[i], t.host[i], limit);
      }
      for (const Activation kind : {Activation::silu, Activation::gelu_tanh}) {
        const Twins t = twins(
            {drawn({n}, dtype, 1), drawn({n}, dtype, 2), drawn({n}, dtype, 3), Tensor({n}, dtype)},
            [&](const KernelTable& k, const Views& v) {
              k.gated_forward(kind, v[0], v[1], v[3]);
              k.gated_backward(kind, v[0], v[1], v[2]);
            });
        for (const std::size_t i : {0u, 1u, 2u, 3u}) CHECK_NEAR(t.cuda[i], t.host[i], limit);
      }
    }
}

TEST_CASE("dropout drops what the host drops, and residual sums have its bits") {
  for (const DType dtype : kStorage)
    for (const std::int64_t n : kCounts)
      for (const float rate : {0.0f, 0.1f, 1.0f}) {
        CAPTURE(n);
        const Dropout dropout{.rate = rate, .key = {5, 6, 7}, .first_element = (1ull << 34) + 3};
        const Twins t = twins({drawn({n}, dtype, 1), drawn({n}, DType::fp32, 2),
                               drawn({n}, dtype, 3), Tensor({n}, dtype)},
                              [&](const KernelTable& k, const Views& v) {
                                k.residual_add(v[0], dropout, v[1]);
                                k.dropout(v[0], dropout, true, v[2]);
                                k.dropout(v[0], dropout, false, v[3]);
                              });
        for (const std::size_t i : {1u, 2u, 3u}) CHECK(t.cuda[i] == t.host[i]);
      }
}

}  // namespace plimsoll::kernels::test
