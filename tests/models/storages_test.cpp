#include "models/storages.h"

#include <doctest/doctest.h>

using namespace plimsoll;
using namespace plimsoll::models;

namespace {
Bytes all(const char* name, std::int64_t values, DType held_in = DType::uint8) {
  Bytes sum;
  for (const PackedTensor& tensor :
       packed_tensors(*find_packed_storage(name), Count(values), held_in))
    sum += tensor.bytes();
  return sum;
}
}  // namespace

TEST_CASE("a packed weight is its halves of bytes, its scales and their tables") {
  // 4096 x 4096: 8,388,608 bytes of halves; 262,144 scales of 4 bytes; 16 values of 4.
  CHECK(all("nf4", 4096 * 4096) == Bytes(8'388'608 + 1'048'576 + 64));
  // Scales of one byte; 1,024 of theirs; 256 values that they stand for; one offset.
  CHECK(all("nf4-dq", 4096 * 4096) == Bytes(8'388'608 + 262'144 + 64 + 4096 + 1024 + 4));
  CHECK(all("fp4", 4096 * 4096) == all("nf4", 4096 * 4096));
  // 65 values fill 33 bytes and two blocks; in elements of two bytes (65 + 1) / 4 of them.
  CHECK(all("nf4", 65) == Bytes(33 + 8 + 64));
  CHECK(all("nf4", 65, DType::bf16) == Bytes(32 + 8 + 64));
  CHECK(all("nf4", 64, DType::fp32) == all("nf4", 64));
}

TEST_CASE("only storages without a refusal are planned") {
  CHECK(packed_storage_names() == "nf4, nf4-dq, fp4");
  CHECK(find_packed_storage("nf5") == nullptr);
  CHECK(!find_packed_storage("gptq")->refusal.empty());
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
}
