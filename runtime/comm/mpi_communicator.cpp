// Host memory between processes: ranks exchange data and add in the canonical order, so that the
// bits are those of threads.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "models/decisions/exchange.h"
#include "runtime/comm/mpi_exchange.h"
#include "runtime/comm/mpi_news.h"
#include "runtime/comm/mpi_ranks.h"
#include "runtime/comm/tree_sum.h"

namespace plimsoll::runtime::comm {

namespace {

constexpr std::size_t kSmallStaging = 64 << 10;
constexpr int kFailed = 3;  // as status_of
// In which rank 0 writes down the error of another rank and ends the job. Of the 30 seconds in
// which it must have ended.
constexpr double kRecordSeconds = 15;

Bytes bytes_of(ConstTensorView view) {
  return storage(Count(view.elements()), view.dtype);
}

// Elements first .. first + count.
struct Range {
  std::int64_t first = 0, count = 0;
};

// What is started is done when it is waited for. Nobody else touches its buffers, so that one that
// is not waited for needs nothing.
class MpiWork final : public Pending::Work {
 public:
  explicit MpiWork(std::function<void()> work) : work_(std::move(work)) {}
  void wait() override { work_(); }

 private:
  std::function<void()> work_;
};

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MpiGroup group) : group_(std::move(group)) {
    expect_mpi(MPI_Comm_set_errhandler(group_.communicator, MPI_ERRORS_RETURN), "MPI");
  }
  // A communicator of MPI is not freed: that waits for the others, who may have failed.
  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  Pending start_all_reduce(TensorView buffer) override;
  Pending start_reduce_scatter(TensorView whole, PieceRange range) override;
  Pending start_all_gather(ConstTensorView piece, TensorView whole) override;
  Pending start_broadcast(TensorView buffer, int root) override;
  void barrier() override { gather(std::string()); }
  std::vector<std::string> gather(std::string bytes) override;
  std::unique_ptr<Communicator> split(int color) override;
  void abort(const std::string&) noexcept override { MPI_Abort(MPI_COMM_WORLD, kFailed); }
  bool stages() const override {
    return models::decisions::stages_sums(models::Exchange::mpi, false);
  }
  void use_staging(TensorView block) override { staging_ = block; }

 private:
  Pending later(std::function<void()> work) {
    return Pending(std::make_unique<MpiWork>(std::move(work)));
  }
  // This rank's of all ranks' shares becomes the sum. `share(r)` is rank r's.
  template <class Share>
  void sum_share(TensorView buffer, const char* what, Share share);
  void sum_round(TensorView buffer, const char* what, std::span<const Range> ranges,
                 std::byte* staging);

  MpiGroup group_;
  TensorView staging_;
  std::vector<std::byte> small_;
};

std::byte* at(TensorView view, std::int64_t element) {
  return static_cast<std::byte*>(view.data) + storage(Count(element), view.dtype).value();
}

// One round: of each rank's share a range that the staging block can take from all others.
void MpiCommunicator::sum_round(TensorView buffer, const char* what, std::span<const Range> ranges,
                                std::byte* staging) {
  const Range mine = ranges[static_cast<std::size_t>(group_.rank)];
  const Bytes received = storage(Count(mine.count), buffer.dtype);
  std::vector<const void*> values;
  MpiExchange exchange(group_, what);
  for (int r = 0; r < group_.size; ++r) {
    if (r == group_.rank) {
      values.push_back(at(buffer, mine.first));
      continue;
    }
    const Range theirs = ranges[static_cast<std::size_t>(r)];
    exchange.send(r, at(buffer, theirs.first), storage(Count(theirs.count), buffer.dtype));
    exchange.receive(r, staging, received);
    values.push_back(staging);
    staging += received.value();
  }
  exchange.finish();
  void* to = at(buffer, mine.first);
  tree_sum(values, {&to, 1}, buffer.dtype, mine.count);
}

template <class Share>
void MpiCommunicator::sum_share(TensorView buffer, const char* what, Share share) {
  if (group_.size == 1) return;
  const std::int64_t others = (group_.size - 1) * (bits(buffer.dtype) / 8);
  std::int64_t room = staging_ ? bytes_of(staging_).value() : 0;
  auto* staging = static_cast<std::byte*>(staging_.data);
  if (room < others) {  // none, or less than one element of each rank
    small_.resize(kSmallStaging);
    staging = small_.data();
    room = static_cast<std::int64_t>(small_.size());
  }
  const std::int64_t most = room / others;
  check(most > 0, ErrorKind::unsupported, "too many ranks for the staging block");
  std::vector<Range> ranges(static_cast<std::size_t>(group_.size));
  std::int64_t longest = 0;
  for (int r = 0; r < group_.size; ++r) longest = std::max(longest, share(r).count);
  for (std::int64_t done = 0; done < longest; done += most) {
    for (int r = 0; r < group_.size; ++r) {
      const Range all = share(r);
      const std::int64_t first = std::min(done, all.count);
      ranges[static_cast<std::size_t>(r)] = {all.first + first, std::min(most, all.count - first)};
    }
    sum_round(buffer, what, ranges, staging);
  }
}

Pending MpiCommunicator::start_all_reduce(TensorView buffer) {
  return later([=, this] {
    const std::int64_t elements = buffer.elements(), n = group_.size;
    const auto share = [=](int r) {
      return Range{elements / n * r + std::min<std::int64_t>(r, elements % n),
                   elements / n + (r < elements % n ? 1 : 0)};
    };
    sum_share(buffer, "all_reduce", share);
    const Range mine = share(group_.rank);
    MpiExchange exchange(group_, "all_reduce");
    for (int r = 0; r < group_.size; ++r) {
      if (r == group_.rank) continue;
      const Range theirs = share(r);
      exchange.send(r, at(buffer, mine.first), storage(Count(mine.count), buffer.dtype));
      exchange.receive(r, at(buffer, theirs.first), storage(Count(theirs.count), buffer.dtype));
    }
    exchange.finish();
  });
}

Pending MpiCommunicator::start_reduce_scatter(TensorView whole, PieceRange range) {
  const std::int64_t piece = piece_of(whole, group_.size, group_.rank).elements();
  check(range.first >= 0 && range.count >= 0 && range.first + range.count <= piece,
        ErrorKind::internal, "a range lies in its piece");
  return later([=, this] {
    sum_share(whole, "reduce_scatter", [=](int r) {
      return Range{r * piece + range.first, range.count};
    });
  });
}

Pending MpiCommunicator::start_all_gather(ConstTensorView piece, TensorView whole) {
  check(whole.elements() == piece.elements() * group_.size && whole.dtype == piece.dtype,
        ErrorKind::internal, "the whole buffer is all ranks' pieces");
  return later([=, this] {
    MpiExchange exchange(group_, "all_gather");
    for (int r = 0; r < group_.size; ++r) {
      std::byte* to = at(whole, r * piece.elements());
      if (r != group_.rank) {
        exchange.send(r, piece.data, bytes_of(piece));
        exchange.receive(r, to, bytes_of(piece));
      } else if (to != piece.data) {
        std::memcpy(to, piece.data, static_cast<std::size_t>(bytes_of(piece).value()));
      }
    }
    exchange.finish();
  });
}

Pending MpiCommunicator::start_broadcast(TensorView buffer, int root) {
  check(root >= 0 && root < group_.size, ErrorKind::internal, "the root is a rank of the group");
  return later([=, this] {
    MpiExchange exchange(group_, "broadcast");
    if (group_.rank != root) exchange.receive(root, buffer.data, bytes_of(buffer));
    for (int r = 0; r < group_.size && group_.rank == root; ++r)
      if (r != root) exchange.send(r, buffer.data, bytes_of(buffer));
    exchange.finish();
  });
}

std::vector<std::string> MpiCommunicator::gather(std::string bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group_.size), size);
  std::vector<std::string> all(sizes.size());
  {
    MpiExchange exchange(group_, "gather");
    for (int r = 0; r < group_.size; ++r) {
      if (r == group_.rank) continue;
      exchange.send(r, &size, Bytes(sizeof size));
      exchange.receive(r, &sizes[static_cast<std::size_t>(r)], Bytes(sizeof size));
    }
    exchange.finish();
  }
  MpiExchange exchange(group_, "gather");
  for (int r = 0; r < group_.size; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (r == group_.rank) continue;
    all[i].resize(static_cast<std::size_t>(sizes[i]));
    exchange.send(r, bytes.data(), Bytes(size));
    exchange.receive(r, all[i].data(), Bytes(sizes[i]));
  }
  exchange.finish();
  all[static_cast<std::size_t>(group_.rank)] = std::move(bytes);
  return all;
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color) {
  // Everybody is here after it, so that MPI's own collective has nobody to wait for.
  const std::vector<std::string> colors = gather(std::to_string(color));
  MpiGroup part;
  part.timeout_seconds = group_.timeout_seconds;
  for (std::size_t r = 0; r < colors.size(); ++r)
    if (colors[r] == std::to_string(color)) part.world.push_back(group_.world[r]);
  expect_mpi(MPI_Comm_split(group_.communicator, color, group_.rank, &part.communicator), "split");
  expect_mpi(MPI_Comm_rank(part.communicator, &part.rank), "split");
  expect_mpi(MPI_Comm_size(part.communicator, &part.size), "split");
  return std::make_unique<MpiCommunicator>(std::move(part));
}

// The end of this process, and of all: MPI_Abort. A rank whose error it is says so; rank 0 writes
// it down, or else the rank itself. What finds no memory for its words does not keep it from
// ending.
void end_job(int rank, const Error& error, const Ending& ending, bool is_told) noexcept {
  const auto attempt = [](auto act) {
    try {
      act();
    } catch (const std::exception&) {
    }
  };
  if (!is_told) attempt([&] { ending.say(error); });
  if (rank != 0) attempt([&] { tell_rank_0(error, kRecordSeconds); });
  attempt([&] { ending.write(error); });
  MPI_Abort(MPI_COMM_WORLD, status_of(error));
}

}  // namespace

void run_mpi_rank(const std::function<void(Communicator&)>& function, const MpiOptions& options) {
  int provided = 0;
  expect_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init");
  MpiGroup world;
  world.communicator = MPI_COMM_WORLD;
  world.timeout_seconds = options.timeout_seconds;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  world.world.resize(static_cast<std::size_t>(world.size));
  std::iota(world.world.begin(), world.world.end(), 0);
  const int rank = world.rank;
  const Error spare = no_host_memory(rank);
  try {
    MpiCommunicator communicator(std::move(world));
    function(communicator);
    communicator.barrier();  // MPI_Finalize would wait for ever
  } catch (const Told& error) {
    end_job(rank, error, options.ending, true);
  } catch (const std::exception&) {
    end_with_current_error(
        rank, spare, [&](const Error& error) { end_job(rank, error, options.ending, false); });
  }
  MPI_Finalize();
}

}  // namespace plimsoll::runtime::comm
