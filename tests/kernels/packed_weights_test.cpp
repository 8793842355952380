// Weights in 4 bits, against bitsandbytes (tools/oracle/bitsandbytes_goldens.py) and by hand.
#include <cstring>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

Json golden_file() {
  std::ifstream file(PLIMSOLL_GOLDEN "/kernels/packed_weights.json");
  return Json::parse(file);
}

std::vector<float> floats(const Json& values) {
  return values.get<std::vector<float>>();
}
Tensor tensor(const std::vector<float>& values) {
  return {{std::ssize(values)}, DType::fp32, std::vector<double>(values.begin(), values.end())};
}
Tensor tensor(const std::vector<std::uint8_t>& bytes) {
  Tensor t({std::ssize(bytes)}, DType::uint8);
  std::memcpy(t.bytes.data(), bytes.data(), bytes.size());
  return t;
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

}  // namespace plimsoll::kernels::test
