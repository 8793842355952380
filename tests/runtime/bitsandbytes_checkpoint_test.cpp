// Checkpoints that bitsandbytes has packed, and what is wrong with some.
#include <array>
#include <cstring>

#include "tests/runtime/weights.h"
#include "tests/scratch_folder.h"

using namespace plimsoll;
using plimsoll::test::ScratchFolder;
using runtime::io::PackedValues;
using runtime::io::WeightSource;
using runtime::test::check_refused;
using runtime::test::read;

namespace {

std::filesystem::path golden(const std::string& kind) {
  return std::filesystem::path(PLIMSOLL_GOLDEN) / "bitsandbytes_checkpoints" / kind;
}

const std::string kWeight = "model.layers.0.mlp.up_proj.weight";

// A copy that a test may spoil.
struct Copy {
  ScratchFolder folder;
  models::ModelSpec model;

  explicit Copy(const std::string& kind)
      : model(models::model_from_path((golden(kind) / "config.json").string())) {
    folder.write("model.safetensors", plimsoll::test::bytes_of(golden(kind) / "model.safetensors"));
  }
  std::unique_ptr<WeightSource> open() const {
    return runtime::io::stored_weights(model, folder.path());
  }
  // All of them, of equal length.
  void replace(const std::string& from, const std::string& to) const {
    REQUIRE(from.size() == to.size());
    std::string bytes = plimsoll::test::bytes_of(folder / "model.safetensors");
    std::size_t found = 0;
    for (std::size_t at = 0; (at = bytes.find(from, at)) != std::string::npos; ++found)
      bytes.replace(at, from.size(), to);
    REQUIRE(found > 0);
    folder.write("model.safetensors", bytes);
  }
};

float number(const std::vector<std::byte>& bytes, std::size_t at = 0) {
  float value = 0;
  std::memcpy(&value, bytes.data() + 4 * at, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("each packing is known by what stands beside the codes") {
  for (const auto& [kind, name] : {std::pair("nf4", "nf4"),
                                   {"nf4-dq", "nf4-dq"},
                                   {"nf4-dq-bf16", "nf4-dq"},
                                   {"int8", "int8"}}) {
    CAPTURE(kind);
    const Copy copy(kind);
    const auto weights = copy.open();
    REQUIRE(weights->packed_as(kWeight) != nullptr);
    CHECK(weights->packed_as(kWeight)->name == name);
    for (const char* plain :
         {"model.embed_tokens.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight"})
      CHECK(weights->packed_as(plain) == nullptr);
    CHECK(read(*weights, "model.layers.0.input_layernorm.weight", 0, 64) ==
          std::vector<double>(64, 1));
    // up_proj is [192, 64]: 12,288 values, a block of 64 to a row, 192 scales in a block of 256.
    const PackedValues values = weights->packed(kWeight);
    const bool bytes = values.code_dtype == DType::int8;
    CHECK(values.codes.size() == (bytes ? 12288 : 6144));
    CHECK(values.view().codes.elements() == (bytes ? 12288 : 6144));
    CHECK(values.view().scales.elements() == 192);
    CHECK(values.view().block == 64);
    const bool twice = std::string_view(name) == "nf4-dq";
    CHECK(values.scale_dtype == (twice ? DType::uint8 : DType::fp32));
    CHECK(static_cast<bool>(values.view().offset) == twice);
    if (twice) {
      CHECK(values.view().scale_scales.elements() == 1);
      // The mean of magnitudes of some 0.02 · 2.4: the largest of 64 of a normal distribution.
      CHECK(number(values.offset) > 0.04f);
      CHECK(number(values.offset) < 0.06f);
    }
  }
}

TEST_CASE("bytes held in 16 bits are the same bytes") {
  const Copy one("nf4-dq"), other("nf4-dq-bf16");
  const PackedValues a = one.open()->packed(kWeight), b = other.open()->packed(kWeight);
  CHECK(a.codes == b.codes);
  CHECK(a.scales == b.scales);
  CHECK(a.scale_scales == b.scale_scales);
  CHECK(a.offset == b.offset);
}

TEST_CASE("what is packed is not read as values") {
  const Copy copy("nf4");
  const auto weights = copy.open();
  check_refused([&] { (void)read(*weights, kWeight, 0, 8); }, ErrorKind::internal, "is packed in");
  check_refused([&] { (void)weights->packed("lm_head.weight"); }, ErrorKind::internal,
                "lm_head.weight is not packed");
}

TEST_CASE("a packing that our kernels do not have is refused by its name") {
  struct Spoilt {
    const char* kind;
    const char* from;
    const char* to;
    ErrorKind error;
    const char* says;
  };
  for (const Spoilt& spoilt : {
           Spoilt{"nf4", R"("quant_type": "nf4")", R"("quant_type": "fp4")", ErrorKind::unsupported,
                  R"(packed with quant_type "fp4": "nf4" is supported)"},
           {"nf4", R"("blocksize": 64)", R"("blocksize": 32)", ErrorKind::unsupported,
            "packed with blocksize 32: 64 is supported"},
           {"nf4-dq", R"("nested_blocksize": 256)", R"("nested_blocksize": 128)",
            ErrorKind::unsupported, "packed with nested_blocksize 128: 256 is supported"},
           {"nf4", R"("shape": [192, 64])", R"("shape": [64, 192])", ErrorKind::unsupported,
            "packed with shape [64,192]: [192,64] is supported"},
           {"nf4", R"({"quant_type")", R"([-quant_type")", ErrorKind::bad_input,
            "is no JSON object"},
           {"nf4-dq", R"("nested_offset")", R"("nested_offsat")", ErrorKind::bad_input,
            "nested_offset is no number"},
           {"nf4", "weight.absmax", "weight.absmix", ErrorKind::bad_input,
            "weight.absmax is not there"},
           {"nf4", "weight.quant_map", "weight.quant_mop", ErrorKind::bad_input,
            "weight.quant_map is not there"},
           {"nf4-dq", "weight.nested_absmax", "weight.nested_absmix", ErrorKind::bad_input,
            "weight.nested_absmax is not there"},
           {"int8", ".SCB", ".SCC", ErrorKind::unsupported, "packed weights or their scales"},
       }) {
    CAPTURE(spoilt.says);
    const Copy copy(spoilt.kind);
    copy.replace(spoilt.from, spoilt.to);
    check_refused([&] { (void)copy.open(); }, spoilt.error, spoilt.says);
  }
}

TEST_CASE("another table of values, other tiles, and a lone tensor are refused") {
  const auto four = [](float value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  };
  const Copy table("nf4");  // FP4's levels are multiples of 1/12, say
  table.replace(four(0.07958029955625534f), four(0.0833333358168602f));
  check_refused([&] { (void)table.open(); }, ErrorKind::unsupported,
                "a table of values of its own");

  const Copy tiles("int8");
  std::string bytes = plimsoll::test::bytes_of(tiles.folder / "model.safetensors");
  const std::size_t formats = 7;  // one byte for each linear, the narrowest type: at the end
  for (std::size_t i = 0; i < formats; ++i) {
    const std::size_t at = bytes.size() - 1 - i;
    bytes[at] = bytes[at] == 0 ? '\2' : bytes[at];
  }
  tiles.folder.write("model.safetensors", bytes);
  check_refused([&] { (void)tiles.open(); }, ErrorKind::unsupported, "packed in tiles");

  const Copy lone("int8");  // compressed-tensors has such a tensor, bitsandbytes has none
  lone.replace("q_proj.weight_format\":", "q_proj.weight_scale\" :");
  check_refused([&] { (void)lone.open(); }, ErrorKind::unsupported, "does not hold the weights");
}
