// Expected figures are read off the messages by hand: 388.00 MiB is 388 x 2^20 = 406,847,488 bytes,
// two decimals of a GiB are 10,737,418.24 bytes, half of that the margin.
#include "reports/oom/scanner.h"

#include <doctest/doctest.h>

#include <string>

namespace plimsoll::tests {

using reports::OomKind;
using reports::OomLog;
using reports::OomMessage;
using reports::OomScanner;

namespace {

OomLog scan(std::string_view text, std::size_t piece = 1 << 16) {
  OomScanner scanner;
  for (std::size_t at = 0; at < text.size(); at += piece) scanner.feed(text.substr(at, piece));
  scanner.finish();
  return scanner.log();
}

OomMessage only(std::string_view text) {
  const OomLog log = scan(text);
  REQUIRE(log.messages == 1);
  return *log.first;
}

// github.com/tatsu-lab/stanford_alpaca/issues/223
constexpr std::string_view kOld =
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB (GPU 3; 31.75 "
    "GiB total capacity; 28.42 GiB already allocated; 340.94 MiB free; 30.39 GiB reserved in total "
    "by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
    "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF";

// github.com/instructlab/instructlab/issues/2666
constexpr std::string_view kNew =
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 238.00 MiB. GPU 0 has "
    "a total capacity of 22.05 GiB of which 10.81 MiB is free. Process 43872 has 4.97 GiB memory "
    "in use. Including non-PyTorch memory, this process has 17.05 GiB memory in use. Of the "
    "allocated memory 15.43 GiB is allocated by PyTorch, and 1.07 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";

void check_old(const OomMessage& m) {
  CHECK(m.kind == OomKind::allocator);
  CHECK(m.device == "CUDA");
  CHECK(m.gpu == 3);
  CHECK(m.tried->bytes == Bytes(406847488));
  CHECK(m.tried->margin == Bytes(5243));  // half of 0.01 MiB
  CHECK(m.capacity->bytes == Bytes(34091302912));  // 31.75 x 2^30
  CHECK(m.allocated->bytes == Bytes(30515742638));  // 28.42 x 2^30
  CHECK(m.allocated->margin == Bytes(5368710));
  CHECK(m.free->bytes == Bytes(357501501));  // 340.94 x 2^20
  CHECK(m.reserved->bytes == Bytes(32631014031));  // 30.39 x 2^30
  CHECK_FALSE(m.unallocated);
  CHECK_FALSE(m.in_use);
  CHECK(m.is_old());
}

}  // namespace

TEST_CASE("the wording before PyTorch 2.1") {
  check_old(only(kOld));
}

TEST_CASE("the wording since 2.1, with another process and this one") {
  const OomMessage m = only(kNew);
  CHECK(m.rank == 0);
  CHECK(m.gpu == 0);
  CHECK(m.tried->bytes == 238_MiB);
  CHECK(m.capacity->bytes == Bytes(23676007219));  // 22.05 x 2^30
  CHECK(m.free->bytes == Bytes(11335107));  // 10.81 x 2^20
  REQUIRE(m.processes.size() == 1);
  CHECK(m.processes[0].pid == 43872);
  CHECK(m.processes[0].in_use.bytes == Bytes(5336496865));  // 4.97 x 2^30
  CHECK(m.in_use->bytes == Bytes(18307298099));  // 17.05 x 2^30
  CHECK(m.allocated->bytes == Bytes(16567836344));  // 15.43 x 2^30
  CHECK(m.unallocated->bytes == Bytes(1148903752));  // 1.07 x 2^30
  CHECK_FALSE(m.is_old());
}

// PyTorch 2.1 to 2.2 wrote "capacty".
TEST_CASE("a typing error of PyTorch 2.1, and KiB and bytes") {
  const OomMessage m = only(
      "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total "
      "capacty of 12.00 GiB of which 0 bytes is free. Of the allocated memory 2.93 GiB is "
      "allocated by PyTorch, and 982.50 KiB is reserved by PyTorch but unallocated. If ");
  CHECK(m.capacity->bytes == 12_GiB);
  CHECK(m.free->bytes == 0_B);
  CHECK(m.free->margin == 0_B);
  CHECK(m.unallocated->bytes == Bytes(1006080));  // 982.5 x 1024
  CHECK(m.unallocated->margin == Bytes(6));  // half of 0.01 KiB
}

// As PyTorch 2.11 prints them on the dry CUDA runtime of tools/oracle; private pools:
// github.com/minerva4ai-eu/minerva-benchmarks/issues/42
TEST_CASE("a memory fraction, and private pools") {
  OomMessage m = only(
      "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 8.00 "
      "GiB of which 2.00 GiB is free. 6.40 GiB allowed; Of the allocated memory 6.00 GiB is "
      "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved");
  CHECK(m.tried->bytes == 1_GiB);
  CHECK(m.allowed->bytes == Bytes(6871947674));  // 6.4 x 2^30
  CHECK(m.allocated->bytes == 6_GiB);
  m = only(
      "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 1 has a total capacity of 63.29 GiB of "
      "which 1.82 GiB is free. Including non-PyTorch memory, this process has 61.46 GiB memory in "
      "use. Of the allocated memory 22.97 GiB is allocated by PyTorch, with 2.14 GiB allocated in "
      "private pools (e.g., CUDA Graphs), and 37.00 GiB is reserved by PyTorch but unallocated.");
  CHECK(m.allocated->bytes == Bytes(24663849697));  // 22.97 x 2^30
  CHECK(m.private_pools->bytes == Bytes(2297807503));  // 2.14 x 2^30
  CHECK(m.unallocated->bytes == 37_GiB);
}

TEST_CASE("other makers' devices") {
  OomMessage m = only(
      "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 978.00 MiB. GPU 0 has a "
      "total capacity of 15.98 GiB of which 630.00 MiB is free. Of the allocated memory 0 bytes "
      "is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.");
  CHECK(m.device == "HIP");
  CHECK(m.free->bytes == 630_MiB);
  CHECK(m.allocated->bytes == 0_B);
  m = only(
      "RuntimeError: NPU out of memory. Tried to allocate 508.00 MiB (NPU 2; 32.00 GiB total "
      "capacity; 29.19 GiB already allocated; 29.00 GiB current active; 412.09 MiB free; 30.43 "
      "GiB reserved in total by PyTorch)");
  CHECK(m.device == "NPU");
  CHECK(m.gpu == 2);
  CHECK(m.allocated->bytes == Bytes(31342523843));  // 29.19 x 2^30
}

// github.com/EvilBT/ComfyUI_SLK_joy_caption_two/issues/28: no limit is the largest number there is.
TEST_CASE("the asynchronous backend") {
  const OomMessage m = only(
      "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of "
      "memory)\n"
      "Currently allocated     : 15.16 GiB\nRequested               : 512.00 KiB\n"
      "Device limit            : 15.99 GiB\nFree (according to CUDA): 0 bytes\n"
      "PyTorch limit (set by user-supplied memory fraction)\n"
      "                        : 17179869184.00 GiB\n");
  CHECK(m.kind == OomKind::async_allocator);
  CHECK(m.gpu == 0);
  CHECK(m.tried->bytes == 512_KiB);
  CHECK(m.capacity->bytes == Bytes(17169131766));  // 15.99 x 2^30
  CHECK(m.free->bytes == 0_B);
  CHECK(m.allocated->bytes == Bytes(16277926052));  // 15.16 x 2^30
  CHECK_FALSE(m.allowed);
  CHECK(m.unreadable.empty());
}

// "[rank1]: … Cuda failure 2 'out of memory'": github.com/QwenLM/Qwen3-VL/issues/2053.
TEST_CASE("NCCL, libraries, the driver and the host") {
  OomMessage m = only(
      "[rank1]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank1]: Last error:\n"
      "[rank1]: Cuda failure 2 'out of memory'\n");
  CHECK(m.kind == OomKind::nccl);
  CHECK(m.rank == 1);
  CHECK(m.line == 3);
  m = only("node1:18451:18451 [0] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'");
  CHECK(m.kind == OomKind::nccl);
  m = only("NCCL WARN Failed to CUDA calloc async 536870912 bytes");
  CHECK(m.kind == OomKind::nccl);
  CHECK(m.tried->bytes == 512_MiB);
  m = only(
      "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`");
  CHECK(m.kind == OomKind::library);
  CHECK(m.library == "CUBLAS_STATUS_ALLOC_FAILED");
  m = only("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED");
  CHECK(m.library == "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED");
  m = only("Error out of memory at line 380 in file /src/csrc/pythonInterface.c");
  CHECK(m.library == "bitsandbytes");
  // The explanation behind an error repeats its name.
  m = only(
      "torch.AcceleratorError: CUDA error: out of memory\nSearch for "
      "`cudaErrorMemoryAllocation' in https://docs.nvidia.com for more information.");
  CHECK(m.kind == OomKind::driver);
  m = only("RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/x.cu:66");
  CHECK(m.kind == OomKind::driver);
  m = only(
      "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't "
      "allocate memory: you tried to allocate 939524096 bytes. Error code 12");
  CHECK(m.kind == OomKind::host);
  CHECK(m.tried->bytes == 896_MiB);
}

// An error's name within 600 characters (without blanks) behind the driver's last message belongs
// to that, "out of memory" is always one of its own; behind a megabyte, too.
TEST_CASE("the driver's name for it counts once, near its message") {
  const std::string said = "RuntimeError: CUDA error: out of memory\n",
                    name = "cudaErrorMemoryAllocation\n";
  for (const std::size_t before : {std::size_t{0}, std::size_t{3} << 20}) {
    CAPTURE(before);
    const std::string log(before, 'x');
    const auto messages = [&](const std::string& text) { return scan(log + "\n" + text).messages; };
    CHECK(messages(said + name) == 1);
    CHECK(messages(said + name + name) == 1);
    CHECK(messages(said + std::string(500, 'x') + "\n" + name) == 1);
    CHECK(messages(said + std::string(700, 'x') + "\n" + name) == 2);
    CHECK(messages(said + said) == 2);
    CHECK(messages(name + std::string(700, 'x') + "\n" + name) == 2);
  }
}

TEST_CASE("prose about memory is no message") {
  CHECK(
      scan("If you run out of memory, reduce the batch. OutOfMemoryError is caught.\n").messages ==
      0);
  CHECK(scan("We saw CUDA out of memory errors; see also oom_kill.").messages == 0);
  CHECK(scan("").messages == 0);
  CHECK(scan("except torch.cuda.OutOfMemoryError:\n    skip()").messages == 0);
}

TEST_CASE("colours, broken lines, marks of ranks and blanks that do not break") {
  check_old(
      only("\x1b[31mtorch.cuda.OutOfMemoryError\x1b[0m: \x1b[1;31mCUDA out of memory. Tried to "
           "allocate 388.00 MiB (GPU 3; 31.75 GiB total capacity; 28.42 GiB already "
           "allocated; 340.94 MiB free; 30.39 GiB reserved in total by PyTorch)\x1b[0m"));
  // In the middle of words and numbers, as a terminal breaks them.
  std::string broken;
  for (std::size_t i = 0; i < kOld.size(); ++i) {
    broken += kOld[i];
    if (i % 7 == 3) broken += "\r\n";
  }
  check_old(only(broken));
  check_old(
      only("[rank3]: CUDA out of memory. Tried to allocate 388.00 MiB (GPU 3; 31.75 GiB\n"
           "[rank3]: total capacity; 28.42 GiB already\n[rank3]: allocated; 340.94 MiB\n"
           "[rank3]: free; 30.39 GiB reserved in total by PyTorch)"));
  check_old(
      only("> CUDA out of memory. Tried to allocate 388.00 MiB (GPU 3; 31.75\n> GiB total "
           "capacity; 28.42 GiB already allocated; 340.94\n> MiB free; 30.39\xC2\xA0GiB "
           "reserved in total by PyTorch)"));
  check_old(
      only("{\"error\": \"CUDA out of memory. Tried to allocate 388.00\\nMiB (GPU 3; 31.75 GiB "
           "total capacity; 28.42 GiB already allocated; 340.94 MiB\\tfree; 30.39 GiB "
           "reserved in total by PyTorch)\"}"));
}

TEST_CASE("marks in the middle of numbers, behind other lines and behind what was forgotten") {
  const std::string lines = "[rank3]: a line\n[rank3]: and one more, that is longer\n";
  const std::string much = std::string(std::size_t{3} << 20, 'x') + "\n";
  for (const std::string& before : {std::string(), lines, much, much + lines}) {
    CAPTURE(before.size());
    for (const std::string mark : {"[rank3]: ", "3: ", "[1,3]<stderr>:", "> ", ">> "}) {
      CAPTURE(mark);
      const std::string broken = "\n" + mark;
      const OomMessage m =
          only(before + mark + "CUDA out of memory. Tried to allocate 388" + broken +
               ".00 MiB (GPU 3; 31" + broken +
               ".75 GiB total capacity; 28.42 GiB "
               "already allocated; 340" +
               broken + ".94 MiB free; 30.39 GiB reserved in total by PyTorch)\n" + lines);
      check_old(m);
      if (mark[0] != '>') CHECK(m.rank == 3);
    }
  }
}

TEST_CASE("UTF-16, as a Windows shell writes it") {
  std::string wide = "\xFF\xFE";
  for (const char c : kOld) wide += {c, '\0'};
  check_old(only(wide));
}

TEST_CASE("pieces of any size give the same") {
  const std::string text = std::string(5000, 'x') + "\n" + std::string(kOld) + "\n" + "tail\n";
  for (const std::size_t piece : {1, 2, 3, 17, 64, 1000, 100000}) {
    const OomLog log = scan(text, piece);
    REQUIRE(log.messages == 1);
    CHECK(log.first->line == 2);
    check_old(*log.first);
  }
}

// Two ranks into one pipe: github.com/YJiangcm/LTE/issues/3.
TEST_CASE("messages of two ranks that were written at once") {
  const OomLog log = scan(
      "torch.cudatorch.cuda..OutOfMemoryErrorOutOfMemoryError: : CUDA out of memory. Tried to "
      "allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 77.13 GiB already allocated; 307.31 MiB "
      "free; 78.21 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
      "setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management "
      "and PYTORCH_CUDA_ALLOC_CONFCUDA out of memory. Tried to allocate 2.00 GiB (GPU 3; 79.15 GiB "
      "total capacity; 77.13 GiB already allocated; 355.31 MiB free; 78.21 GiB reserved in total "
      "by "
      "PyTorch) If reserved memory is");
  CHECK(log.messages == 2);
  CHECK(log.first->gpu == 0);
  CHECK(log.first->free->bytes == Bytes(322237891));  // 307.31 x 2^20
  REQUIRE(log.groups.size() == 1);
  CHECK(log.groups[0].times == 2);
  CHECK(log.groups[0].gpus == std::vector<std::int64_t>{0, 3});
}

TEST_CASE("the first in time is the cause, where every message has a time") {
  const std::string later = "2026-10-11 01:43:12,001 ERROR [rank0] " + std::string(kOld) + "\n";
  const std::string first = "[rank5]: 2026-10-11T01:43:11.990 ERROR CUDA error: out of memory\n";
  OomLog log = scan(later + first);
  CHECK(log.first->kind == OomKind::driver);
  CHECK(log.first->time == "2026-10-11 01:43:11.990");
  CHECK(log.first->rank == 5);
  CHECK(log.first->line == 2);
  log = scan(later + first + std::string(kNew));  // one without: the order of the log
  CHECK(log.first->kind == OomKind::allocator);
  CHECK(log.messages == 3);
  CHECK(log.groups.size() == 3);
}

TEST_CASE("launchers' marks of ranks") {
  const auto rank_of = [](const std::string& mark) {
    return only(mark + "RuntimeError: CUDA error: out of memory").rank;
  };
  CHECK(rank_of("[rank12]: ") == 12);
  CHECK(rank_of("[default3]:") == 3);
  CHECK(rank_of("[1,7]<stderr>: ") == 7);
  CHECK(rank_of("3: ") == 3);
  CHECK(rank_of("[123456789]: ") == 123'456'789);
  CHECK_FALSE(rank_of("[1234567890]: ").has_value());  // no rank is
  CHECK(rank_of("123456: ") == 123'456);
  CHECK_FALSE(rank_of("1234567: ").has_value());
  CHECK_FALSE(rank_of("[rank]: ").has_value());
  CHECK_FALSE(rank_of("17:06:52 ").has_value());
  CHECK_FALSE(rank_of("").has_value());
}

TEST_CASE("a message that was cut keeps what there is of it") {
  // github.com/hiyouga/LLaMA-Factory/issues/4263
  OomMessage m = only(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. "
      "GPU\n  0%|          | 0/30 [00:00<?, ?it/s]\n");
  CHECK(m.tried->bytes == 112_MiB);
  CHECK_FALSE(m.capacity);
  m = only("torch.OutOfMemoryError: CUDA out of memory.");
  CHECK_FALSE(m.tried);
  m = only("CUDA out of memory. Tried to allocate");
  CHECK_FALSE(m.tried);
}

// github.com/zai-org/ChatGLM-6B/issues/1254, github.com/meta-llama/llama-cookbook/issues/45
TEST_CASE("absurd numbers") {
  OomMessage m = only(
      "CUDA out of memory. Tried to allocate 134744072.03 GiB (GPU 1; 23.69 GiB total "
      "capacity; 5.64 GiB already allocated; 16.84 GiB free; 5.65 GiB reserved in "
      "total by PyTorch)");
  CHECK(m.tried->bytes == Bytes(144680345674679584));  // 134744072.03 x 2^30, as a double
  CHECK(m.free->bytes == Bytes(18081812316));
  m = only("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.");
  CHECK(m.kind == OomKind::overflow);
  m = only(
      "CUDA out of memory. Tried to allocate 99999999999999999999999999.99 GiB (GPU 0; "
      "18446744073709551615.00 GiB total capacity; 1.00 GiB already allocated; 1 bytes free; ");
  CHECK_FALSE(m.tried);
  CHECK_FALSE(m.capacity);
  CHECK(m.unreadable.size() == 2);
  CHECK(m.allocated->bytes == 1_GiB);
  CHECK(m.free->bytes == 1_B);
}

TEST_CASE("zeros, binary junk and escapes that never end") {
  std::string junk;
  std::uint32_t state = 1;
  for (int i = 0; i < 3 << 20; ++i) {
    state = state * 1664525 + 1013904223;
    junk += static_cast<char>(state >> 24);
  }
  CHECK(scan(junk).messages == 0);
  check_old(only(junk + "\n" + std::string(kOld) + std::string(1 << 21, '\0') + junk));
  CHECK(scan(std::string(1 << 21, '\x1b')).messages == 0);
  CHECK(scan("\x1b[" + std::string(1 << 20, '9')).messages == 0);
  check_old(only(std::string(kOld.substr(0, 60)) + std::string(1 << 20, '\0') +
                 std::string(kOld.substr(60))));
  CHECK(only(std::string(3 << 20, '\n') + std::string(kOld)).line == (3 << 20) + 1);
}

TEST_CASE("a log full of messages keeps some of them, and counts all") {
  std::string text;
  for (int i = 1; i <= 50000; ++i)
    text += "CUDA out of memory. Tried to allocate " + std::to_string(i) + ".00 MiB. GPU 0 has\n";
  const OomLog log = scan(text);
  CHECK(log.messages == 50000);
  CHECK(log.first->tried->bytes == 1_MiB);
  CHECK(log.groups.size() == 32);
  CHECK(log.ungrouped == 50000 - 32);
}

TEST_CASE("DeepSpeed's warnings of flushes") {
  const OomLog log = scan(
      "2 pytorch allocator cache flushes since last step. this happens when there is high memory "
      "pressure\n1 pytorch allocator cache flushes since last step.\n" +
      std::string(kOld));
  CHECK(log.flushes == 2);
}

}  // namespace plimsoll::tests
