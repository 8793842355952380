// One message, out of a log's text without its blanks: messages are broken into lines by terminals,
// mails and log collectors, at times in the middle of a word.
#pragma once

#include <optional>
#include <string_view>

#include "reports/oom/message.h"

namespace plimsoll::reports {

// Words that stand in every message that is known; one is enough to look closer.
// Sources: pytorch c10/cuda/CUDACachingAllocator.cpp and CUDAMallocAsyncAllocator.cpp (v1.8 …
// v2.11), c10/cuda/CUDAException.cpp, c10/core/impl/alloc_cpu.cpp; nccl src/include/alloc.h and
// checks.h; cublas_api.h, cudnn.h, cufft.h; bitsandbytes csrc (CUDA_CHECK_RETURN).
inline constexpr std::string_view kOomWords[] = {
    "outofmemory",        "ErrorMemoryAllocation", "ErrorOutOfMemory",       "ERROR_OUT_OF_MEMORY",
    "ALLOC_FAILED",       "ALLOCATION_FAILED",     "memory:youtriedtoalloc", "FailedtoCUDAcalloc",
    "FailedtoCUDAmalloc", "FailedtoCUDAhostalloc"};

// `text`: without blanks; `word`: where one of those words begins in it. Nothing where it is prose
// ("if you run out of memory, …") or the second half of a message. Fills in what the text says, not
// where it stands.
std::optional<OomMessage> read_oom_message(std::string_view text, std::size_t word);

// Whether it is worth a closer look: cheap, for logs that are full of the word.
bool may_be_oom_message(std::string_view text, std::size_t word);

// Characters, blanks not counted, that a message may have behind its word: 200 processes on a card.
inline constexpr std::size_t kLongestOom = 8192;

}  // namespace plimsoll::reports
