// reports/memory_accuracy.md: what plans make of published memory of real runs
// (reports/evidence/published/memory.json). Judged by nobody of this project: other people's runs,
// other versions of torch.
#pragma once

#include <string>

#include "tools/published/answers.h"

namespace plimsoll::tests {

using MemoryRow = tools::PublishedAnswer;

struct MemoryRows : tools::PublishedAnswers {
  const std::vector<MemoryRow>& rows() const { return answers; }
};

inline bool same_kernels(const MemoryRow& row) {
  return row.ran_kernels == "eager";
}

MemoryRows memory_rows();

// reports/memory_accuracy.md.
std::string memory_accuracy_page(const MemoryRows& rows);

}  // namespace plimsoll::tests
