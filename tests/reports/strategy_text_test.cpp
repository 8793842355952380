// What a strategy is in words.
#include "reports/strategy_text.h"

#include <doctest/doctest.h>

#include "models/storages.h"

using namespace plimsoll;

namespace {

// The one line of a LoRA under DeepSpeed's `zero`, in bf16-mixed.
std::string adapters_line(int zero, const char* packed) {
  models::Strategy s;
  s.stack = models::Stack::deepspeed;
  s.precision = models::Precision::bf16_mixed;
  s.data.zero = zero;
  s.lora = models::Lora{.rank = 16, .dtype = DType::fp32};
  if (packed != nullptr) s.quantize = models::Quantization{models::find_packed_storage(packed)};
  const std::vector<std::string> lines = reports::strategy_lines(s);
  REQUIRE(lines.size() == 1);
  return lines[0];
}

}  // namespace

// The engine casts what it gets whole. Under ZeRO-3 from_pretrained gives it shards, but whole
// packed weights.
TEST_CASE("adapters have the dtype that DeepSpeed's engine leaves them in") {
  CHECK(adapters_line(2, nullptr) == "LoRA rank 16, adapters in bf16");
  CHECK(adapters_line(3, nullptr) == "LoRA rank 16, adapters in fp32");
  CHECK(adapters_line(2, "nf4") == "LoRA rank 16, adapters in bf16, base packed in nf4");
  CHECK(adapters_line(3, "nf4") == "LoRA rank 16, adapters in bf16, base packed in nf4");
}
