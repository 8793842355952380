// Weights in 4 and 8 bits, against bitsandbytes (tools/oracle/bitsandbytes_goldens.py) and by hand.
#include <cmath>
#include <cstring>
#include <random>

#include "tests/kernels/operands.h"
#include "tests/near.h"

namespace plimsoll::kernels::test {

using tests::near;

namespace {

const KernelTable& k = host_kernels();

Json golden_file(const std::string& name = "packed_weights") {
  std::ifstream file(PLIMSOLL_GOLDEN "/kernels/" + name + ".json");
  return Json::parse(file);
}

std::vector<float> floats(const Json& values) {
  return values.get<std::vector<float>>();
}
Tensor tensor(const std::vector<float>& values) {
  return {{std::ssize(values)}, DType::fp32, std::vector<double>(values.begin(), values.end())};
}
template <class Byte>
Tensor tensor_of_bytes(const std::vector<Byte>& bytes, DType dtype) {
  Tensor t({std::ssize(bytes)}, dtype);
  std::memcpy(t.bytes.data(), bytes.data(), bytes.size());
  return t;
}
Tensor tensor(const std::vector<std::uint8_t>& bytes) {
  return tensor_of_bytes(bytes, DType::uint8);
}
Tensor tensor(const std::vector<std::int8_t>& bytes) {
  return tensor_of_bytes(bytes, DType::int8);
}

struct Packed {
  explicit Packed(const std::vector<float>& values)
      : codes((values.size() + 1) / 2), scales((values.size() + 63) / 64) {
    pack_nf4(values, codes, scales);
  }
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};
struct PackedScales {
  explicit PackedScales(const std::vector<float>& given)
      : codes(given.size()), scales((given.size() + 255) / 256) {
    pack_scales(given, codes, scales, offset);
  }
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  float offset = -1;
};
struct PackedInt8 {
  PackedInt8(const std::vector<float>& values, std::int64_t row)
      : codes(values.size()), scales(values.size() / static_cast<std::size_t>(row)) {
    pack_int8(values, row, codes, scales);
  }
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
};
struct PackedAffine {
  PackedAffine(const std::vector<float>& values, std::int64_t block)
      : codes(values.size()),
        zeros(static_cast<std::size_t>(ceil_divide(std::ssize(values), block))),
        scales(zeros.size()) {
    pack_affine(values, block, codes, scales, zeros);
  }
  std::vector<std::uint8_t> codes, zeros;
  std::vector<float> scales;
};

}  // namespace

TEST_CASE("the levels are bitsandbytes', bit for bit") {
  CHECK(floats(golden_file()["nf4"]) == std::vector<float>(kNf4.begin(), kNf4.end()));
}

TEST_CASE("bytes and scales of NF4 weights are bitsandbytes', with double quantization too") {
  int doubly = 0;
  const Json golden = golden_file();
  for (const Json& c : golden["cases"]) {
    const std::vector<float> weight = floats(c["weight"]);
    CAPTURE(weight.size());
    const Packed packed(weight);
    CHECK(packed.codes == c["codes"].get<std::vector<std::uint8_t>>());
    CHECK(packed.scales == floats(c["scales"]));
    if (!c.contains("double")) continue;
    ++doubly;
    const PackedScales scales(packed.scales);
    CHECK(scales.offset == c["double"]["offset"].get<float>());
    CHECK(scales.codes == c["double"]["codes"].get<std::vector<std::uint8_t>>());
    CHECK(scales.scales == floats(c["double"]["scales"]));
  }
  CHECK(doubly == 2);
}

TEST_CASE("weights dequantized are bitsandbytes', bit for bit, in fp32 and in 16 bits") {
  const Json golden = golden_file();
  for (const Json& c : golden["cases"]) {
    if (!c.contains("dequantized")) continue;
    const Packed packed(floats(c["weight"]));
    const Tensor codes = tensor(packed.codes), scales = tensor(packed.scales);
    const std::int64_t n = std::ssize(c["weight"]);
    for (const auto& [name, dtype] :
         {std::pair("dequantized", DType::fp32), std::pair("dequantized_bf16", DType::bf16)}) {
      Tensor out({n}, dtype);
      k.dequantize({codes, scales, {}, {}}, out);
      CHECK(out == Tensor({n}, dtype, c[name].get<std::vector<double>>()));
    }
    if (!c.contains("double")) continue;
    const PackedScales again(packed.scales);
    const Tensor scale_codes = tensor(again.codes), scale_scales = tensor(again.scales),
                 offset = tensor(std::vector<float>{again.offset});
    Tensor out({n}, DType::fp32);
    k.dequantize({codes, scale_codes, scale_scales, offset}, out);
    CHECK(out == Tensor({n}, DType::fp32, c["double"]["dequantized"].get<std::vector<double>>()));
  }
}

// Every block of the largest case has another scale: that of element 64 b is level · scale b.
TEST_CASE("scales in 8 bits come back as bitsandbytes has them") {
  const Json golden = golden_file();
  for (const Json& c : golden["cases"]) {
    if (!c.contains("double")) continue;
    const std::vector<float> each = floats(c["double"]["each"]);
    const std::int64_t n = std::ssize(c["weight"]);
    // Codes of 15 stand for 1.
    const Tensor codes =
        tensor(std::vector<std::uint8_t>(static_cast<std::size_t>(n + 1) / 2, 0xff));
    const PackedScales scales(floats(c["scales"]));
    const Tensor scale_codes = tensor(scales.codes), scale_scales = tensor(scales.scales),
                 offset = tensor(std::vector<float>{scales.offset});
    Tensor out({n}, DType::fp32);
    k.dequantize({codes, scale_codes, scale_scales, offset}, out);
    for (std::int64_t i = 0; i < n; ++i)
      REQUIRE(out.at(i) == static_cast<double>(each[static_cast<std::size_t>(i / 64)]));
  }
}

// 0.25 lies between the levels 0.2461 (code 10) and 0.3379 (11), nearer to the first; 1 is code 15
// and the scale; 0 is 7, and fills the low half of an odd last byte.
TEST_CASE("three values by hand") {
  const Packed packed({2, 0.5, -2});
  CHECK(packed.codes == std::vector<std::uint8_t>{0xfa, 0x07});
  CHECK(packed.scales == std::vector<float>{2});
}

TEST_CASE("a packed weight of other lengths is refused") {
  const Packed packed(std::vector<float>(130, 1.0f));
  const Tensor codes = tensor(packed.codes), scales = tensor(packed.scales);
  Tensor out({130}, DType::fp32);
  k.dequantize({codes, scales, {}, {}}, out);
  CHECK(out == Tensor({130}, DType::fp32, 1.0));
  Tensor shorter({127}, DType::fp32), longer({193}, DType::fp32);
  CHECK_THROWS_AS(k.dequantize({codes, scales, {}, {}}, shorter), Error);
  CHECK_THROWS_AS(k.dequantize({codes, scales, {}, {}}, longer), Error);
  CHECK_THROWS_AS(k.dequantize({codes, scales, scales, {}}, out), Error);
}

TEST_CASE("bytes, scales and values of LLM.int8() are bitsandbytes', a row of zeros too") {
  const Json golden = golden_file("int8_weights");
  CHECK(golden["cases"].size() == 4);
  for (const Json& c : golden["cases"]) {
    const std::vector<float> weight = floats(c["weight"]);
    const auto row = c["row"].get<std::int64_t>();
    CAPTURE(row);
    const PackedInt8 packed(weight, row);
    CHECK(packed.codes == c["codes"].get<std::vector<std::int8_t>>());
    CHECK(packed.scales == floats(c["scales"]));
    const Tensor codes = tensor(packed.codes), scales = tensor(packed.scales);
    for (const auto& [name, dtype] :
         {std::pair("dequantized", DType::fp32), std::pair("dequantized_bf16", DType::bf16)}) {
      Tensor out({std::ssize(weight)}, dtype);
      k.dequantize({.codes = codes, .scales = scales, .block = row}, out);
      CHECK(out == Tensor({std::ssize(weight)}, dtype, c[name].get<std::vector<double>>()));
    }
  }
}

// -1 to 1.55 are 255 steps of 0.01, of which 0 is the hundredth; 0.2549 is nearest to the 25th.
// A block of one sign reaches to 0, and one of zeros has no steps. Three values in a block of 4.
TEST_CASE("affine codes by hand") {
  const std::vector<float> values{-1,   1.55f, 0, 0.2549f, 5, 2.6f, 1.25f, 5,
                                  -510, -2,    0, -1,      0, 0,    0};
  const PackedAffine packed(values, 4);
  CHECK(packed.zeros == std::vector<std::uint8_t>{100, 0, 255, 0});
  CHECK(packed.codes ==
        std::vector<std::uint8_t>{0, 255, 100, 125, 255, 133, 64, 255, 0, 254, 255, 255, 0, 0, 0});
  CHECK(packed.scales == std::vector<float>{2.55f / 255, 5.0f / 255, 2, 0});
  const Tensor codes = tensor(packed.codes), scales = tensor(packed.scales),
               zeros = tensor(packed.zeros);
  Tensor out({15}, DType::fp32);
  k.dequantize({.codes = codes, .scales = scales, .zeros = zeros, .block = 4}, out);
  CHECK(near(out.at(0), -1.0, 1e-6));
  CHECK(near(out.at(3), 0.25, 1e-6));
  CHECK(near(out.at(5), 133 * 5.0 / 255, 1e-6));
  CHECK(out.at(8) == -510);
  CHECK(out.at(9) == -2);
  CHECK(out.at(11) == 0);  // half a step, to the even code
  for (const int i : {2, 10, 12, 13, 14}) CHECK(out.at(i) == 0);
}

namespace {
constexpr std::int64_t kRow = 4096, kRows = 16;

std::vector<float> normal_values() {
  std::mt19937_64 random(20261128);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(kRows * kRow));
  for (float& v : values) v = normal(random);
  return values;
}

// Of what is lost to what there is, root mean squares.
double relative_error(const PackedWeight& packed, const std::vector<float>& values) {
  Tensor out({std::ssize(values)}, DType::fp32);
  k.dequantize(packed, out);
  double lost = 0, all = 0;
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    const auto v = static_cast<double>(values[static_cast<std::size_t>(i)]);
    lost += (out.at(i) - v) * (out.at(i) - v);
    all += v * v;
  }
  return std::sqrt(lost / all);
}
double row_error(const std::vector<float>& values) {
  const PackedInt8 packed(values, kRow);
  const Tensor codes = tensor(packed.codes), scales = tensor(packed.scales);
  return relative_error({.codes = codes, .scales = scales, .block = kRow}, values);
}
double affine_error(const std::vector<float>& values) {
  const PackedAffine packed(values, 256);
  const Tensor codes = tensor(packed.codes), scales = tensor(packed.scales),
               zeros = tensor(packed.zeros);
  return relative_error({.codes = codes, .scales = scales, .zeros = zeros, .block = 256}, values);
}
}  // namespace

// Rounding loses a step / sqrt(12). A row's step is its largest magnitude / 127, a block's its
// range / 255. The largest of 4,096 normal magnitudes is 3.82 standard deviations, the range of 256
// values 5.66: 0.87 % and 0.64 %. With a value of 50 in each row a row's step is 50 / 127, and one
// block of sixteen has one of 52.8 / 255; a row's root mean square is then sqrt(1 + 2500 / 4096)
// = 1.27.
TEST_CASE(
    "what 8 bits lose: a block with a zero of its own less than a row, above all by outliers") {
  std::vector<float> values = normal_values();
  CHECK(near(row_error(values), 0.0087, 0.05));
  CHECK(near(affine_error(values), 0.0064, 0.05));
  for (std::size_t row = 0; row < kRows; ++row) values[row * kRow + 17 * row] = 50;
  CHECK(near(row_error(values), 0.090, 0.05));
  CHECK(near(affine_error(values), 0.0127, 0.05));
}

TEST_CASE("a weight in 8 bits of other lengths is refused") {
  const PackedAffine packed(std::vector<float>(130, 1.0f), 64);
  const Tensor codes = tensor(packed.codes), scales = tensor(packed.scales),
               zeros = tensor(packed.zeros);
  const Tensor signed_codes({130}, DType::int8);
  Tensor out({130}, DType::fp32), shorter({129}, DType::fp32);
  k.dequantize({.codes = codes, .scales = scales, .zeros = zeros, .block = 64}, out);
  CHECK(out == Tensor({130}, DType::fp32, 1.0));
  const PackedWeight whole{.codes = codes, .scales = scales, .zeros = zeros, .block = 64};
  CHECK_THROWS_AS(k.dequantize(whole, shorter), Error);
  for (const std::int64_t block : {0, 32, 65}) {
    PackedWeight other = whole;
    other.block = block;
    CHECK_THROWS_AS(k.dequantize(other, out), Error);
  }
  PackedWeight both = whole;
  both.codes = signed_codes;  // signed, and with zeros
  CHECK_THROWS_AS(k.dequantize(both, out), Error);
  PackedWeight doubly = whole;
  doubly.scale_scales = scales;
  CHECK_THROWS_AS(k.dequantize(doubly, out), Error);
}

}  // namespace plimsoll::kernels::test
