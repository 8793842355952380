// Operations run on a side stream of high priority, behind what the rank has asked for so far, and
// the rank's own stream goes on until `wait`. Nobody waits on the host.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/cuda/rank_sum.h"
#include "models/decisions/exchange.h"
#include "runtime/comm/nccl_library.h"
#include "runtime/comm/nccl_watchdog.h"

namespace plimsoll::runtime::comm {

namespace {

namespace cuda = kernels::cuda;

// Where sums are made before the staging block is there.
constexpr std::int64_t kSmallStaging = 64 << 10;

Bytes bytes_of(ConstTensorView view) {
  return storage(Count(view.elements()), view.dtype);
}
std::byte* at(TensorView view, std::int64_t element) {
  return static_cast<std::byte*>(view.data) + storage(Count(element), view.dtype).value();
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::fp64:
      return ncclFloat64;
    case DType::fp32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::fp16:
      return ncclFloat16;
    default:
      fail(ErrorKind::internal, "ranks do not add " + std::string(name_of(dtype)));
  }
}

// The calls of one group are one operation.
class Group {
 public:
  explicit Group(const char* what) : what_(what) { expect_nccl(nccl::group_start(), what); }
  void end() {
    open_ = false;
    expect_nccl(nccl::group_end(), what_);
  }
  ~Group() {
    if (open_) nccl::group_end();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

 private:
  const char* what_;
  bool open_ = true;
};

class NcclWork final : public Pending::Work {
 public:
  NcclWork(std::shared_ptr<Watchdog> dog, CUstream_st* stream, std::shared_ptr<Event> done)
      : dog_(std::move(dog)), stream_(stream), done_(std::move(done)) {}
  // The rank fails: the others may never come, and whoever gives back memory waits for the stream.
  ~NcclWork() override {
    if (!waited_) dog_->abort_communicators();
  }
  void wait() override {
    wait_for(stream_, *done_);
    waited_ = true;
  }

 private:
  std::shared_ptr<Watchdog> dog_;
  CUstream_st* stream_;
  std::shared_ptr<Event> done_;
  bool waited_ = false;
};

// Elements first .. first + count.
struct Range {
  std::int64_t first = 0, count = 0;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Control> control, std::shared_ptr<Watchdog> dog,
                   ncclComm_t communicator, bool deterministic, std::shared_ptr<Stream> side)
      : control_(std::move(control)),
        dog_(std::move(dog)),
        nccl_(communicator),
        deterministic_(deterministic),
        rank_(control_->rank()),
        size_(control_->size()),
        side_(std::move(side)) {
    if (nccl_ != nullptr) dog_->add(nccl_);
  }
  // Not destroyed: that waits for the others, who may have failed. Its memory goes with the
  // process.
  ~NcclCommunicator() override {
    if (nccl_ != nullptr) dog_->remove(nccl_);
    cudaFree(small_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Pending start_all_reduce(TensorView buffer) override;
  Pending start_reduce_scatter(TensorView whole, PieceRange range) override;
  Pending start_all_gather(ConstTensorView piece, TensorView whole) override;
  Pending start_broadcast(TensorView buffer, int root) override;
  void barrier() override { gather(std::string()); }
  std::vector<std::string> gather(std::string bytes) override {
    return control_->gather(std::move(bytes));
  }
  std::unique_ptr<Communicator> split(int color) override;
  void abort(const std::string& reason) noexcept override {
    dog_->abort_communicators();
    control_->abort(reason);
  }
  bool stages() const override {
    return models::decisions::stages_sums(models::Exchange::nccl, deterministic_);
  }
  void use_staging(TensorView block) override { staging_ = block; }

 private:
  // `work` queues on the side stream, which is the thread's stream for it.
  template <class Work>
  Pending start(const char* what, Work work);
  template <class Share>
  void sum_share(TensorView buffer, const char* what, Share share);
  void sum_round(TensorView buffer, const char* what, std::span<const Range> ranges,
                 std::byte* staging);
  void exchange_shares(TensorView buffer, std::span<const Range> shares);

  std::shared_ptr<Control> control_;
  std::shared_ptr<Watchdog> dog_;
  ncclComm_t nccl_;  // null: one rank
  bool deterministic_;
  int rank_, size_;
  // One for all groups: kernels of several communicators at once may wait for each other for ever
  // (NCCL user guide, "Using multiple NCCL communicators concurrently").
  std::shared_ptr<Stream> side_;
  TensorView staging_;
  void* small_ = nullptr;
};

template <class Work>
Pending NcclCommunicator::start(const char* what, Work work) {
  if (nccl_ == nullptr) return {};
  const cuda::Launch& launch = cuda::current_launch();
  Event before;
  before.record(launch.stream);
  wait_for(side_->get(), before);
  {
    cuda::Launch aside = launch;
    aside.stream = side_->get();
    const cuda::Launching launching(aside);
    const Watchdog::Call call(*dog_, what);
    work();
  }
  auto done = std::make_shared<Event>();
  done->record(side_->get());
  dog_->watch(what, done);
  return Pending(std::make_unique<NcclWork>(dog_, launch.stream, std::move(done)));
}

// One round: of each rank's share a range that the staging block can take from all others.
void NcclCommunicator::sum_round(TensorView buffer, const char* what, std::span<const Range> ranges,
                                 std::byte* staging) {
  const Range mine = ranges[static_cast<std::size_t>(rank_)];
  const Bytes received = storage(Count(mine.count), buffer.dtype);
  std::vector<const void*> values;
  Group group(what);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) {
      values.push_back(at(buffer, mine.first));
      continue;
    }
    const Range theirs = ranges[static_cast<std::size_t>(r)];
    const Bytes sent = storage(Count(theirs.count), buffer.dtype);
    if (sent > Bytes(0))
      expect_nccl(nccl::send(at(buffer, theirs.first), static_cast<std::size_t>(sent.value()),
                             ncclUint8, r, nccl_, side_->get()),
                  what);
    if (received > Bytes(0))
      expect_nccl(nccl::recv(staging, static_cast<std::size_t>(received.value()), ncclUint8, r,
                             nccl_, side_->get()),
                  what);
    values.push_back(staging);
    staging += received.value();
  }
  group.end();
  void* to = at(buffer, mine.first);
  cuda::rank_sum(values, {&to, 1}, buffer.dtype, mine.count);
}

// This rank's of all ranks' shares becomes the sum. `share(r)` is rank r's.
template <class Share>
void NcclCommunicator::sum_share(TensorView buffer, const char* what, Share share) {
  const std::int64_t others = (size_ - 1) * (bits(buffer.dtype) / 8);
  if (others == 0) return;
  std::int64_t room = staging_ ? bytes_of(staging_).value() : 0;
  auto* staging = static_cast<std::byte*>(staging_.data);
  if (room < others) {  // none, or less than one element of each rank
    if (small_ == nullptr)
      check(cudaMalloc(&small_, kSmallStaging) == cudaSuccess, ErrorKind::out_of_memory,
            "no room on the GPU for 64 KiB of sums");
    staging = static_cast<std::byte*>(small_);
    room = kSmallStaging;
  }
  const std::int64_t most = room / others;
  check(most > 0, ErrorKind::unsupported, "too many ranks for the staging block");
  std::vector<Range> ranges(static_cast<std::size_t>(size_));
  std::int64_t longest = 0;
  for (int r = 0; r < size_; ++r) longest = std::max(longest, share(r).count);
  for (std::int64_t done = 0; done < longest; done += most) {
    for (int r = 0; r < size_; ++r) {
      const Range all = share(r);
      const std::int64_t first = std::min(done, all.count);
      ranges[static_cast<std::size_t>(r)] = {all.first + first, std::min(most, all.count - first)};
    }
    sum_round(buffer, what, ranges, staging);
  }
}

// Every rank's share to all others.
void NcclCommunicator::exchange_shares(TensorView buffer, std::span<const Range> shares) {
  Group group("all_reduce");
  for (int r = 0; r < size_; ++r) {
    const Range share = shares[static_cast<std::size_t>(r)];
    if (share.count == 0) continue;
    const auto bytes = static_cast<std::size_t>(storage(Count(share.count), buffer.dtype).value());
    expect_nccl(nccl::broadcast(at(buffer, share.first), at(buffer, share.first), bytes, ncclUint8,
                                r, nccl_, side_->get()),
                "all_reduce");
  }
  group.end();
}

Pending NcclCommunicator::start_all_reduce(TensorView buffer) {
  const std::int64_t elements = buffer.elements(), n = size_;
  return start("all_reduce", [&] {
    if (!deterministic_)
      return expect_nccl(
          nccl::all_reduce(buffer.data, buffer.data, static_cast<std::size_t>(elements),
                           nccl_type(buffer.dtype), ncclSum, nccl_, side_->get()),
          "all_reduce");
    std::vector<Range> shares;
    for (std::int64_t r = 0; r < n; ++r)
      shares.push_back({elements / n * r + std::min(r, elements % n),
                        elements / n + (r < elements % n ? 1 : 0)});
    sum_share(buffer, "all_reduce", [&](int r) { return shares[static_cast<std::size_t>(r)]; });
    exchange_shares(buffer, shares);
  });
}

Pending NcclCommunicator::start_reduce_scatter(TensorView whole, PieceRange range) {
  const std::int64_t piece = piece_of(whole, size_, rank_).elements();
  check(range.first >= 0 && range.count >= 0 && range.first + range.count <= piece,
        ErrorKind::internal, "a range lies in its piece");
  return start("reduce_scatter", [&] {
    const auto first_of = [&](int r) { return r * piece + range.first; };
    if (deterministic_)
      return sum_share(whole, "reduce_scatter", [&](int r) {
        return Range{first_of(r), range.count};
      });
    if (range.count == piece)
      return expect_nccl(nccl::reduce_scatter(whole.data, at(whole, first_of(rank_)),
                                              static_cast<std::size_t>(piece),
                                              nccl_type(whole.dtype), ncclSum, nccl_, side_->get()),
                         "reduce_scatter");
    Group group("reduce_scatter");
    for (int r = 0; r < size_; ++r)
      expect_nccl(nccl::reduce(at(whole, first_of(r)), at(whole, first_of(r)),
                               static_cast<std::size_t>(range.count), nccl_type(whole.dtype),
                               ncclSum, r, nccl_, side_->get()),
                  "reduce_scatter");
    group.end();
  });
}

Pending NcclCommunicator::start_all_gather(ConstTensorView piece, TensorView whole) {
  check(whole.elements() == piece.elements() * size_ && whole.dtype == piece.dtype,
        ErrorKind::internal, "the whole buffer is all ranks' pieces");
  return start("all_gather", [&] {
    expect_nccl(
        nccl::all_gather(piece.data, whole.data, static_cast<std::size_t>(bytes_of(piece).value()),
                         ncclUint8, nccl_, side_->get()),
        "all_gather");
  });
}

Pending NcclCommunicator::start_broadcast(TensorView buffer, int root) {
  check(root >= 0 && root < size_, ErrorKind::internal, "the root is a rank of the group");
  return start("broadcast", [&] {
    expect_nccl(nccl::broadcast(buffer.data, buffer.data,
                                static_cast<std::size_t>(bytes_of(buffer).value()), ncclUint8, root,
                                nccl_, side_->get()),
                "broadcast");
  });
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color) {
  std::shared_ptr<Control> part = control_->split(color);
  ncclComm_t child = nullptr;
  if (nccl_ != nullptr) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.splitShare = 1;  // one set of buffers for all groups
    const Watchdog::Call call(*dog_, "ncclCommSplit");
    // A group of one rank needs none.
    expect_nccl(nccl::comm_split(nccl_, part->size() == 1 ? NCCL_SPLIT_NOCOLOR : color, rank_,
                                 &child, &config),
                "ncclCommSplit");
  }
  return std::make_unique<NcclCommunicator>(std::move(part), dog_, child, deterministic_, side_);
}

// Rank 0's id on every rank; with NCCL_COMM_ID NCCL finds rank 0 by itself.
ncclUniqueId shared_id(Control& control) {
  ncclUniqueId id{};
  if (control.rank() == 0) expect_nccl(nccl::get_unique_id(&id), "ncclGetUniqueId");
  const std::string bytes = control.gather(std::string(id.internal, sizeof id.internal))[0];
  check(bytes.size() == sizeof id.internal, ErrorKind::communicator, "NCCL's id is cut short");
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

}  // namespace

std::unique_ptr<Communicator> nccl_communicator(std::unique_ptr<Control> control,
                                                const NcclOptions& options) {
  const std::shared_ptr<Control> shared = std::move(control);
  if (shared->size() == 1 && !options.also_alone) return single_communicator();
  int device = 0;
  check(cudaGetDevice(&device) == cudaSuccess, ErrorKind::device, "the thread has no GPU");
  // The control channel must not go before the thread that looks at it.
  const std::shared_ptr<Watchdog> dog(new Watchdog(shared->rank(), device, *shared, options),
                                      [shared](Watchdog* d) { delete d; });
  const ncclUniqueId id = shared_id(*shared);
  ncclComm_t communicator = nullptr;
  {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const Watchdog::Call call(*dog, "ncclCommInitRank");
    expect_nccl(
        nccl::comm_init_rank_config(&communicator, shared->size(), id, shared->rank(), &config),
        "ncclCommInitRank");
  }
  return std::make_unique<NcclCommunicator>(shared, dog, communicator, options.deterministic,
                                            std::make_shared<Stream>(Stream::Priority::high));
}

std::string nccl_version() {
  int version = 0;
  if (nccl::get_version(&version) != ncclSuccess) return {};
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace plimsoll::runtime::comm
