#include <fmt/format.h>

#include <chrono>

#include "runtime/comm/thread_group.h"

namespace plimsoll::runtime::comm {

namespace {

using Lock = std::unique_lock<std::mutex>;
using Body = std::function<void(SharedBuffers&, const std::vector<Call>&, std::size_t rank)>;

std::string text_of(const Call& call) {
  return std::string(call.what) + " of " + std::to_string(call.from.elements()) + " " +
         std::string(name_of(call.from.dtype)) +
         (call.detail != 0 ? " (" + std::to_string(call.detail) + ")" : "");
}

// The world's ranks that have not come, or not come back.
std::string missing(const ThreadGroup& group, const Exchange& exchange) {
  std::string ranks;
  std::size_t many = 0;
  for (std::size_t r = 0; r < exchange.calls.size(); ++r) {
    const bool absent = exchange.here < exchange.calls.size() ? exchange.calls[r].what == nullptr
                                                              : !exchange.done[r];
    if (!absent) continue;
    ranks += (many++ > 0 ? ", " : "") + std::to_string(group.ranks[r]);
  }
  return (many > 1 ? "ranks " : "rank ") + ranks;
}

class ThreadWork final : public Pending::Work {
 public:
  ThreadWork(std::shared_ptr<ThreadGroup> group, std::size_t rank, std::uint64_t number, Body body)
      : group_(std::move(group)), rank_(rank), number_(number), body_(std::move(body)) {}
  ~ThreadWork() override {
    if (finished_) return;
    Lock lock(job().mutex);
    job().aborted = true;
    job().changed.notify_all();
    leave(lock);
  }

  void wait() override {
    Lock lock(job().mutex);
    Exchange& e = exchange();
    await(lock, [&] { return e.here == e.calls.size(); });
    expect_one_operation(lock);
    ++e.reading;
    lock.unlock();
    try {
      use_buffers(e);
    } catch (...) {  // a GPU's error
      lock.lock();
      --e.reading;
      throw;  // the destructor ends the job
    }
    lock.lock();
    --e.reading;
    e.done[rank_] = true;
    if (++e.finished == e.calls.size() || job().aborted) job().changed.notify_all();
    await(lock, [&] { return e.finished == e.calls.size(); });
    for (const SharedBuffers::Place& used : e.used) job().buffers->after(used);
    finished_ = true;
    if (++e.left == e.calls.size()) group_->exchanges.erase(number_);
  }

 private:
  ThreadJob& job() const { return *group_->job; }
  Exchange& exchange() const { return group_->exchanges.at(number_); }
  // Nobody changes the calls and this rank's place while ranks are reading.
  void use_buffers(Exchange& e) {
    SharedBuffers& buffers = *job().buffers;
    const bool has_buffers = e.calls[rank_].from.data != nullptr;
    for (const Call& call : e.calls) buffers.after(call.ready);
    body_(buffers, e.calls, rank_);
    if (has_buffers) e.used[rank_] = buffers.place();
  }
  // Nobody begins to use the buffers of a job that has ended; who has begun is waited for.
  void leave(Lock& lock) {
    job().changed.wait(lock, [&] { return exchange().reading == 0; });
  }

  template <class Condition>
  void await(Lock& lock, Condition condition) {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(job().timeout_seconds);
    const bool came =
        job().changed.wait_until(lock, until, [&] { return job().aborted || condition(); });
    if (!came) {
      const Exchange& e = exchange();
      job().fail_locked(
          Error(ErrorKind::communicator,
                fmt::format("{}: not there for {} after {} s, of which rank {} has waited",
                            missing(*group_, e), e.calls[rank_].what, job().timeout_seconds,
                            group_->ranks[rank_])));
    }
    if (!job().aborted) return;
    leave(lock);
    throw Stopped(job().reason);
  }

  void expect_one_operation(Lock& lock) {
    const std::vector<Call>& calls = exchange().calls;
    for (std::size_t r = 1; r < calls.size(); ++r) {
      if (text_of(calls[r]) == text_of(calls[0])) continue;
      job().fail_locked(Error(ErrorKind::communicator,
                              "rank " + std::to_string(group_->ranks[r]) + ": " +
                                  text_of(calls[r]) + ", where rank " +
                                  std::to_string(group_->ranks[0]) + " has " + text_of(calls[0])));
      leave(lock);
      throw Stopped(job().reason);
    }
  }

  std::shared_ptr<ThreadGroup> group_;
  std::size_t rank_;
  std::uint64_t number_;
  Body body_;
  bool finished_ = false;
};

const std::byte* at(ConstTensorView view, std::int64_t element) {
  return static_cast<const std::byte*>(view.data) + storage(Count(element), view.dtype).value();
}
std::byte* at(TensorView view, std::int64_t element) {
  return static_cast<std::byte*>(view.data) + storage(Count(element), view.dtype).value();
}

void copy(SharedBuffers& buffers, ConstTensorView from, std::byte* to) {
  if (from.data != to) buffers.copy(to, from.data, storage(Count(from.elements()), from.dtype));
}

// Elements first .. first + count of all ranks' buffers into those of `to`.
void sum(SharedBuffers& buffers, const std::vector<Call>& calls, std::span<const Call> to,
         std::int64_t first, std::int64_t count) {
  std::vector<const void*> from;
  std::vector<void*> targets;
  for (const Call& call : calls) from.push_back(at(call.from, first));
  for (const Call& call : to) targets.push_back(at(call.to, first));
  buffers.sum(from, targets, calls[0].from.dtype, count);
}

// Each rank adds its share of the elements, for all.
void sum_share(SharedBuffers& buffers, const std::vector<Call>& calls, std::size_t rank) {
  const auto n = static_cast<std::int64_t>(calls.size()), r = static_cast<std::int64_t>(rank);
  const std::int64_t elements = calls[0].from.elements();
  const std::int64_t first = elements / n * r + std::min(r, elements % n);
  sum(buffers, calls, calls, first, elements / n + (r < elements % n ? 1 : 0));
}

void copy_pieces(SharedBuffers& buffers, const std::vector<Call>& calls, std::size_t rank) {
  for (std::size_t r = 0; r < calls.size(); ++r)
    copy(buffers, calls[r].from,
         at(calls[rank].to, static_cast<std::int64_t>(r) * calls[r].from.elements()));
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(static_cast<std::size_t>(rank)) {}
  int rank() const override { return static_cast<int>(rank_); }
  int size() const override { return static_cast<int>(group_->ranks.size()); }

  Pending start_all_reduce(TensorView buffer) override {
    return start({"all_reduce", buffer, buffer}, sum_share);
  }
  Pending start_reduce_scatter(TensorView whole, PieceRange range) override {
    const std::int64_t piece = piece_of(whole, size(), rank()).elements();
    check(range.first >= 0 && range.count >= 0 && range.first + range.count <= piece,
          ErrorKind::internal, "a range lies in its piece");
    return start({"reduce_scatter", whole, whole, range.first + range.count},
                 [=](SharedBuffers& buffers, const std::vector<Call>& calls, std::size_t rank) {
                   sum(buffers, calls, {&calls[rank], 1},
                       static_cast<std::int64_t>(rank) * piece + range.first, range.count);
                 });
  }
  Pending start_all_gather(ConstTensorView piece, TensorView whole) override {
    check(whole.elements() == piece.elements() * size() && whole.dtype == piece.dtype,
          ErrorKind::internal, "the whole buffer is all ranks' pieces");
    return start({"all_gather", piece, whole}, copy_pieces);
  }
  Pending start_broadcast(TensorView buffer, int root) override {
    check(root >= 0 && root < size(), ErrorKind::internal, "the root is a rank of the group");
    return start({"broadcast", buffer, buffer, root},
                 [root](SharedBuffers& buffers, const std::vector<Call>& calls, std::size_t rank) {
                   copy(buffers, calls[static_cast<std::size_t>(root)].from, at(calls[rank].to, 0));
                 });
  }
  void barrier() override {
    start({"barrier"}, [](SharedBuffers&, const std::vector<Call>&, std::size_t) {}).wait();
  }
  std::vector<std::string> gather(std::string bytes) override {
    Call call{"gather"};
    call.bytes = std::move(bytes);
    std::vector<std::string> all;
    start(std::move(call), [&](SharedBuffers&, const std::vector<Call>& calls, std::size_t) {
      for (const Call& c : calls) all.push_back(c.bytes);
    }).wait();
    return all;
  }
  std::unique_ptr<Communicator> split(int color) override;
  void abort(const std::string& reason) noexcept override;

 private:
  Pending start(Call call, Body body);

  std::shared_ptr<ThreadGroup> group_;
  std::size_t rank_;
  std::uint64_t next_ = 0;  // number of the next operation; the same on all ranks
};

Pending ThreadCommunicator::start(Call call, Body body) {
  ThreadJob& job = *group_->job;
  const Lock lock(job.mutex);
  if (job.aborted) throw Stopped(job.reason);
  if (call.from.data != nullptr) call.ready = job.buffers->place();
  const std::uint64_t number = next_++;
  Exchange& e = group_->exchanges[number];
  e.calls.resize(group_->ranks.size());
  e.done.resize(group_->ranks.size());
  e.used.resize(group_->ranks.size());
  // Before the others see the call: they use its buffers, and only the work waits for them.
  auto work = std::make_unique<ThreadWork>(group_, rank_, number, std::move(body));
  e.calls[rank_] = std::move(call);
  if (++e.here == e.calls.size()) job.changed.notify_all();
  return Pending(std::move(work));
}

std::unique_ptr<Communicator> ThreadCommunicator::split(int color) {
  const std::vector<std::string> colors = gather(std::to_string(color));
  std::vector<int> ranks;
  int rank = 0;
  for (std::size_t r = 0; r < colors.size(); ++r) {
    if (colors[r] != colors[rank_]) continue;
    if (r == rank_) rank = static_cast<int>(ranks.size());
    ranks.push_back(group_->ranks[r]);
  }
  const Lock lock(group_->job->mutex);
  auto& child = group_->split[{next_, color}];
  if (!child) {
    child = std::make_shared<ThreadGroup>();
    child->job = group_->job;
    child->ranks = std::move(ranks);
  }
  return thread_communicator(child, rank);
}

void ThreadCommunicator::abort(const std::string& reason) noexcept {
  const Lock lock(group_->job->mutex);
  try {
    group_->job->fail_locked(Error(ErrorKind::communicator,
                                   "rank " + std::to_string(group_->ranks[rank_]) + ": " + reason));
  } catch (const std::bad_alloc&) {
    group_->job->aborted = true;
    group_->job->changed.notify_all();
  }
}

}  // namespace

void ThreadJob::fail_locked(const Error& why, const std::exception_ptr& spare) noexcept {
  if (!error) try {
      error = std::make_exception_ptr(why);
      reason = why.message();
    } catch (const std::bad_alloc&) {  // the other ranks stop without a reason
      if (!error) error = spare ? spare : std::current_exception();
    }
  aborted = true;
  changed.notify_all();
}

std::unique_ptr<Communicator> thread_communicator(std::shared_ptr<ThreadGroup> group, int rank) {
  return std::make_unique<ThreadCommunicator>(std::move(group), rank);
}

}  // namespace plimsoll::runtime::comm
