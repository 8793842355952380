#include "reports/oom/reading.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/text.h"

namespace plimsoll::reports {

namespace {

std::string text_of(Bytes bytes) {
  return bytes_text(bytes);
}

class Reader {
 public:
  explicit Reader(const OomMessage& message) : m_(message) {}

  OomReading run() {
    account();
    find_cause();
    add_ways();
    return std::move(out_);
  }

 private:
  // Figures of which the card has less were not read as they were written.
  bool is_possible(const std::optional<PrintedSize>& size, const char* name) {
    if (!size || !m_.capacity ||
        size->bytes - size->margin <= m_.capacity->bytes + m_.capacity->margin)
      return true;
    out_.doubts.push_back(fmt::format(
        "{} {} is more than the card's {}: a digit or a point of the log is missing, and "
        "the figure is left out",
        text_of(size->bytes), name, text_of(m_.capacity->bytes)));
    return false;
  }

  void account() {
    for (const std::string& figure : m_.unreadable)
      out_.doubts.push_back(figure + " is no size of a memory, and is left out");
    if (is_possible(m_.reserved, "reserved")) read_reserved();
    find_this_process();
    if (out_.in_use && out_.reserved)
      out_.own_outside = std::max(0_B, *out_.in_use - *out_.reserved);
    if (m_.tried && m_.free && is_possible(m_.free, "free"))
      out_.missing = std::max(0_B, m_.tried->bytes - m_.free->bytes);
    const std::optional<Bytes> own = out_.in_use ? out_.in_use : out_.reserved;
    if (m_.capacity && m_.free && own && m_.free->bytes <= m_.capacity->bytes)
      out_.elsewhere = std::max(0_B, m_.capacity->bytes - m_.free->bytes - *own - out_.others);
  }

  void read_reserved() {
    if (m_.reserved) out_.reserved = m_.reserved->bytes;
    if (m_.unallocated) out_.unallocated = m_.unallocated->bytes;
    if (!m_.allocated || !is_possible(m_.allocated, "allocated")) return;
    if (out_.unallocated && !out_.reserved)
      out_.reserved = m_.allocated->bytes + *out_.unallocated;
    else if (out_.reserved && !out_.unallocated)
      out_.unallocated = std::max(0_B, *out_.reserved - m_.allocated->bytes);
  }

  // In a container a process does not know its own number outside of it, and is listed as any other
  // (pytorch reportProcessMemoryInfo): the one that holds what PyTorch has reserved here.
  void find_this_process() {
    for (const OomProcess& process : m_.processes) out_.others += process.in_use.bytes;
    if (m_.in_use) {
      out_.in_use = m_.in_use->bytes;
      return;
    }
    if (!out_.reserved) return;
    const OomProcess* own = nullptr;
    for (const OomProcess& process : m_.processes) {
      if (process.in_use.bytes + process.in_use.margin < *out_.reserved - 10_MiB) continue;
      if (own != nullptr) return;  // two that could be it
      own = &process;
    }
    if (own == nullptr) return;
    out_.in_use = own->in_use.bytes;
    out_.in_use_inferred = true;
    out_.others -= own->in_use.bytes;
  }

  void conclude(OomCause cause, std::string why) {
    out_.cause = cause;
    out_.why = std::move(why);
  }

  bool find_cause_by_kind() {
    switch (m_.kind) {
      case OomKind::overflow:
        conclude(OomCause::overflow,
                 "More than 2^60 bytes were asked for: a length or an index is wrong (a negative "
                 "number, or garbage of a failed copy), not the memory too small.");
        return true;
      case OomKind::host:
        conclude(OomCause::host,
                 "The machine's own memory was too small, not the GPU's: data loaders, offloaded "
                 "states, or every rank loading the whole model.");
        return true;
      case OomKind::nccl:
        conclude(OomCause::outside,
                 "NCCL asked the driver for its buffers and found no room: they are not PyTorch's, "
                 "which had reserved the rest of the card by then.");
        return true;
      case OomKind::library:
        conclude(OomCause::outside,
                 m_.library +
                     " asked the driver for memory of its own and found no room: PyTorch's "
                     "allocator had reserved the rest of the card, or another process.");
        return true;
      case OomKind::driver:
        conclude(OomCause::outside,
                 "The driver had no room for something outside PyTorch's allocator: a context, a "
                 "kernel's stack or module, pinned memory, or another library.");
        return true;
      case OomKind::allocator:
      case OomKind::async_allocator:
        return false;
    }
    return false;
  }

  void find_cause() {
    if (find_cause_by_kind()) return;
    if (!m_.tried) return conclude(OomCause::unknown, "The message ends before its figures.");
    const Bytes tried = m_.tried->bytes;
    const Bytes most = m_.allowed ? m_.allowed->bytes : m_.capacity ? m_.capacity->bytes : tried;
    if (tried > most)
      return conclude(OomCause::larger_than_card,
                      fmt::format("{} in one piece is more than the {} that {}: no other memory "
                                  "matters, this one tensor must become smaller.",
                                  text_of(tried), text_of(most),
                                  m_.allowed ? "the process may use" : "the card has"));
    if (out_.unallocated && *out_.unallocated >= tried)
      return conclude(
          OomCause::fragmentation,
          fmt::format("Fragmentation: PyTorch had {} in its cache, more than the {} that were "
                      "asked for, but in no piece that large.",
                      text_of(*out_.unallocated), text_of(tried)));
    if (!out_.missing) return conclude_without_free();
    if (*out_.missing == 0_B) return conclude_room_elsewhere();
    if (out_.others >= *out_.missing)
      return conclude(OomCause::other_processes,
                      fmt::format("Other processes held {} of this card; {} were missing.",
                                  text_of(out_.others), text_of(*out_.missing)));
    conclude(OomCause::need,
             fmt::format("Need: {} more would have had to be free for this request alone{}.",
                         text_of(*out_.missing),
                         out_.unallocated ? "; the cache held " + text_of(*out_.unallocated) +
                                                " that no request could use"
                                          : ""));
  }

  // XPU's wording, and what was cut.
  void conclude_without_free() {
    if (!m_.capacity || !out_.reserved)
      return conclude(OomCause::unknown, "The message does not say what was free.");
    conclude(
        OomCause::need,
        fmt::format("Need: PyTorch held {} of the card's {}; the message does not say what was "
                    "free.",
                    text_of(*out_.reserved), text_of(m_.capacity->bytes)));
  }

  void conclude_room_elsewhere() {
    if (m_.allowed)
      return conclude(OomCause::limit,
                      fmt::format("The card had {} free, but this process may use {} only "
                                  "(set_per_process_memory_fraction).",
                                  text_of(m_.free->bytes), text_of(m_.allowed->bytes)));
    conclude(
        OomCause::room_elsewhere,
        fmt::format("The card had {} free, enough for {}: a pool that may not grow (CUDA "
                    "graphs, torch.cuda.MemPool), a limit of the container or the driver, the last "
                    "of a card, which the driver does not give away, or memory that another "
                    "process gave back a moment later.",
                    text_of(m_.free->bytes), text_of(m_.tried->bytes)));
  }

  void add(std::string change, std::string why, std::optional<Bytes> frees = {}) {
    const bool enough = frees && out_.missing && *frees >= *out_.missing && *out_.missing > 0_B;
    out_.ways.push_back({std::move(change), std::move(why), frees, enough});
  }

  void add_ways() {
    if (out_.cause == OomCause::limit)
      add("a larger fraction in torch.cuda.set_per_process_memory_fraction()",
          "the card has room beyond it");
    if (m_.tried && m_.free && out_.unallocated && *out_.unallocated > 0_B &&
        *out_.unallocated + m_.free->bytes >= m_.tried->bytes &&
        out_.cause != OomCause::larger_than_card)
      add_defragmentation();
    if (out_.others > 0_B && out_.cause != OomCause::larger_than_card) {
      std::string pids;
      for (const OomProcess& process : m_.processes)
        if (!out_.in_use_inferred || process.in_use.bytes != *out_.in_use)
          pids += fmt::format("{}{} ({})", pids.empty() ? "" : ", ", process.pid,
                              text_of(process.in_use.bytes));
      add("end the other processes on this card: " + pids, "they hold memory of it", out_.others);
    } else if (out_.elsewhere && *out_.elsewhere > kMuchOutside) {
      add("look who else uses the card (nvidia-smi)",
          fmt::format("{} of it are neither free nor PyTorch's{}", text_of(*out_.elsewhere),
                      out_.in_use ? " nor this process's" : "; a context and NCCL take 1 to 4 GiB"),
          *out_.elsewhere);
    }
    add_by_cause();
  }

  void add_defragmentation() {
    const char* hip = m_.device == "HIP" ? "PYTORCH_HIP_ALLOC_CONF" : "PYTORCH_CUDA_ALLOC_CONF";
    if (m_.is_old())
      add(fmt::format("{}=max_split_size_mb:128, or PyTorch 2.1 and expandable_segments:True", hip),
          "the cache holds the memory, in pieces", *out_.unallocated);
    else
      add(fmt::format("{}=expandable_segments:True", hip), "the cache holds the memory, in pieces",
          *out_.unallocated);
  }

  void add_by_cause() {
    switch (out_.cause) {
      case OomCause::outside:
        add("leave room beside PyTorch: torch.cuda.set_per_process_memory_fraction(0.9)",
            "what PyTorch has reserved is not given to others");
        if (m_.kind == OomKind::nccl)
          add("NCCL_NVLS_ENABLE=0, fewer channels (NCCL_MAX_NCHANNELS) or fewer process groups",
              "each communicator has buffers of its own");
        add("torch.cuda.empty_cache() before the call that failed", "gives cached memory back");
        break;
      case OomCause::host:
        add("fewer data loader workers, low_cpu_mem_usage=True, no offload to the host",
            "those hold the host's memory");
        break;
      case OomCause::overflow:
        add("look at the lengths and indices of the call that failed",
            "no setting makes this request possible");
        break;
      default:
        break;
    }
  }

  // NCCL and a context come to 4.34 GB on 8 x H100 (NVIDIA/nccl issue 1685), the most that
  // models/specs/overheads.json has a source for.
  static constexpr Bytes kMuchOutside = 4_GiB;

  const OomMessage& m_;
  OomReading out_;
};

}  // namespace

const char* name_of(OomCause cause) {
  switch (cause) {
    case OomCause::overflow:
      return "overflow";
    case OomCause::larger_than_card:
      return "larger than the card";
    case OomCause::limit:
      return "limit";
    case OomCause::fragmentation:
      return "fragmentation";
    case OomCause::other_processes:
      return "other processes";
    case OomCause::room_elsewhere:
      return "refused with room free";
    case OomCause::need:
      return "need";
    case OomCause::outside:
      return "outside the allocator";
    case OomCause::host:
      return "host memory";
    case OomCause::unknown:
      return "unknown";
  }
  return "";
}

OomReading read_cause(const OomMessage& message) {
  return Reader(message).run();
}

}  // namespace plimsoll::reports
