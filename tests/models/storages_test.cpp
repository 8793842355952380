#include "models/storages.h"

#include <doctest/doctest.h>

using namespace plimsoll;
using namespace plimsoll::models;

namespace {
Bytes all(const char* name, PackedShape weight, DType held_in = DType::uint8) {
  Bytes sum;
  for (const PackedTensor& tensor : packed_tensors(*find_packed_storage(name), weight, held_in))
    sum += tensor.bytes();
  return sum;
}
}  // namespace

TEST_CASE("a packed weight is its halves of bytes, its scales and their tables") {
  // 4096 x 4096: 8,388,608 bytes of halves; 262,144 scales of 4 bytes; 16 values of 4.
  CHECK(all("nf4", {4096, 4096}) == Bytes(8'388'608 + 1'048'576 + 64));
  // Scales of one byte; 1,024 of theirs; 256 values that they stand for; one offset.
  CHECK(all("nf4-dq", {4096, 4096}) == Bytes(8'388'608 + 262'144 + 64 + 4096 + 1024 + 4));
  CHECK(all("fp4", {4096, 4096}) == all("nf4", {4096, 4096}));
  // 65 values fill 33 bytes and two blocks; in elements of two bytes (65 + 1) / 4 of them.
  CHECK(all("nf4", {5, 13}) == Bytes(33 + 8 + 64));
  CHECK(all("nf4", {5, 13}, DType::bf16) == Bytes(32 + 8 + 64));
  CHECK(all("nf4", {4, 16}, DType::fp32) == all("nf4", {4, 16}));
}

TEST_CASE("LLM.int8() is a byte for each value and a scale for each output") {
  // 11008 x 4096 bytes; 11,008 scales of 4.
  CHECK(all("int8", {11008, 4096}) == Bytes(45'088'768 + 44'032));
}

TEST_CASE("affine 8 bits are a byte for each value, a scale and a zero for each 256") {
  // 11008 x 4096: 176,128 blocks; 5 x 13: one.
  CHECK(all("int8-affine", {11008, 4096}) == Bytes(45'088'768 + 4 * 176'128 + 176'128));
  CHECK(all("int8-affine", {5, 13}) == Bytes(65 + 4 + 1));
}

TEST_CASE("torchao's 8 bits are a byte for each value, a scale and a zero point for each output") {
  CHECK(all("torchao-int8", {11008, 4096}) == Bytes(45'088'768 + 44'032 + 11'008));
}

TEST_CASE("HQQ is halves of bytes, with a scale and a zero of 2 bytes for each 64 values") {
  // 4096 x 4096: 262,144 groups.
  CHECK(all("hqq", {4096, 4096}) == Bytes(8'388'608 + 2 * 524'288));
}

TEST_CASE("GPTQ is halves of bytes; scales, zero points and a group for each input") {
  // 14336 x 4096 in halves; 32 groups of 128 inputs: 458,752 scales of 2 bytes, zero points in
  // halves; 4,096 groups of 4 bytes.
  const std::int64_t halves = 29'360'128, scales = 917'504, zeros = 229'376, groups = 16'384;
  CHECK(all("gptq", {14336, 4096}) == Bytes(halves + scales + zeros + groups));
  // One group: 14,336 scales.
  CHECK(all("gptq-row", {14336, 4096}) == Bytes(halves + 28'672 + 7'168 + groups));
  // Held in floats, zero points stand with the values.
  const auto held =
      packed_tensors(*find_packed_storage("gptq"), PackedShape{14336, 4096}, DType::fp16);
  CHECK(held.front().bytes() == Bytes(halves + zeros));
  CHECK(held.size() == 3);
}

TEST_CASE("AWQ is halves of bytes; scales and zero points, and no input's group") {
  // 14336 x 4096 in halves; 32 groups of 128 inputs: 458,752 scales of 2 bytes, zero points in
  // halves.
  CHECK(all("awq", {14336, 4096}) == Bytes(29'360'128 + 917'504 + 229'376));
}

TEST_CASE("only storages without a refusal are planned") {
  CHECK(packed_storage_names() ==
        "nf4, nf4-dq, fp4, int8, int8-affine, gptq, gptq-row, awq, hqq, torchao-int8");
  CHECK(find_packed_storage("nf5") == nullptr);
  for (const char* name : {"torchao-int4", "fp8", "mxfp4"})
    CHECK(!find_packed_storage(name)->refusal.empty());
}

TEST_CASE("a packed base is prepared for k-bit training where autocast runs and nothing shards") {
  Strategy s;
  CHECK(!kbit_prepared(s));
  s.quantize = Quantization{.storage = find_packed_storage("nf4")};
  CHECK(kbit_prepared(s));
  s.precision = Precision::bf16;
  CHECK(!kbit_prepared(s));
  s.precision = Precision::bf16_mixed;
  s.data.zero = 3;
  CHECK(!kbit_prepared(s));
  s.quantize->kbit_prep = true;
  CHECK(kbit_prepared(s));
  for (const char* name : {"gptq", "awq", "hqq", "torchao-int8"}) {  // of which PEFT casts nothing
    s.quantize->storage = find_packed_storage(name);
    CHECK(!kbit_prepared(s));
  }
}

TEST_CASE("TRL casts back what was prepared, and nothing else") {
  Strategy s;
  s.quantize = Quantization{.storage = find_packed_storage("nf4")};
  CHECK(!casts_behind_kbit(s));
  s.quantize->kbit_casting = true;
  CHECK(casts_behind_kbit(s));
  s.data.zero = 3;
  CHECK(!casts_behind_kbit(s));
  s.data.zero = 0;
  s.quantize->kbit_prep = false;
  CHECK(!casts_behind_kbit(s));
}
