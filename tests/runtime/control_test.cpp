// Ranks that meet over TCP: here as threads of this process, on the loopback.
#include "runtime/comm/control.h"
#include "runtime/comm/ending.h"

#include <doctest/doctest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "runtime/comm/socket.h"

namespace plimsoll::runtime::comm {
namespace {

int free_port() {
  return port_of(listen_at(0));
}

// What each rank ended with: "" or its error.
std::vector<std::string> run(int ranks, const std::function<void(Control&)>& function,
                             double timeout_seconds = 20, int absent = -1) {
  const int port = free_port();
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == absent) continue;
    threads.emplace_back([&, rank] {
      const Launch launch{Launcher::torchrun, rank, ranks, rank, "localhost", port};
      try {
        function(*tcp_control(launch, timeout_seconds));
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::communicator);
        errors[static_cast<std::size_t>(rank)] = error.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST_CASE("ranks gather strings of any bytes and lengths, in their order") {
  std::mutex mutex;
  std::vector<std::vector<std::string>> seen;
  const auto errors = run(4, [&](Control& control) {
    std::string own(static_cast<std::size_t>(control.rank()) * 100'000, '\0');
    own += std::to_string(control.rank());
    auto all = control.gather(own);
    CHECK(control.gather("") == std::vector<std::string>(4));
    const std::lock_guard lock(mutex);
    seen.push_back(std::move(all));
  });
  CHECK(errors == std::vector<std::string>(4));
  REQUIRE(seen.size() == 4);
  for (const auto& all : seen) {
    REQUIRE(all.size() == 4);
    for (std::size_t r = 0; r < 4; ++r) {
      CHECK(all[r].size() == r * 100'000 + 1);
      CHECK(all[r].back() == static_cast<char>('0' + r));
    }
  }
}

TEST_CASE("groups of a split gather among themselves, also one of one rank and a split again") {
  std::mutex mutex;
  std::vector<std::string> seen(5);
  const auto errors = run(5, [&](Control& world) {
    // Ranks 0, 2, 4 and ranks 1, 3; of the former 0, 2 and 4.
    const auto group = world.split(world.rank() % 2);
    const auto part = group->split(group->rank() / 2);
    std::string text = std::to_string(group->rank()) + "/" + std::to_string(group->size()) + ":";
    for (const std::string& rank : group->gather(std::to_string(world.rank()))) text += rank;
    text += "/";
    for (const std::string& rank : part->gather(std::to_string(world.rank()))) text += rank;
    const std::lock_guard lock(mutex);
    seen[static_cast<std::size_t>(world.rank())] = text;
  });
  CHECK(errors == std::vector<std::string>(5));
  CHECK(seen == std::vector<std::string>{"0/3:024/02", "0/2:13/13", "1/3:024/02", "1/2:13/13",
                                         "2/3:024/4"});
}

TEST_CASE("a rank that leaves is named to all that wait") {
  const auto errors = run(3, [](Control& control) {
    if (control.rank() != 1) control.gather("");
  });
  CHECK(errors[0] == "rank 1: has left while others waited for it");
  CHECK(errors[1] == "");
  CHECK(errors[2] == "rank 0: has left while others waited for it");  // and has said why
}

TEST_CASE("who is done and says so has not failed; who goes without a word has") {
  std::string done, gone;
  const auto look = [](Control& control) {
    std::string found;
    for (int i = 0; i < 40 && found.empty(); ++i) {
      found = control.failure();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return found;
  };
  run(2, [&](Control& control) {
    control.gather("");
    if (control.rank() == 0) done = look(control);
  });
  CHECK(done == "");
  const int port = free_port();
  std::thread rank_0([&] {
    const auto control = tcp_control({Launcher::torchrun, 0, 2, 0, "localhost", port}, 20);
    gone = look(*control);
  });
  {
    const Socket socket = connect_to("localhost", port, deadline_in(20));
    socket.send({MessageKind::hello, "1"}, deadline_in(5));
  }
  rank_0.join();
  CHECK(gone == "rank 1: its process has ended");
}

TEST_CASE("the reason of a rank that gives up reaches rank 0, and who only looks now and then") {
  std::string looked;
  const auto errors = run(3, [&](Control& control) {
    control.gather("");
    if (control.rank() == 2) return control.abort("rank 2: a fault of the test");
    if (control.rank() == 1) {
      for (int i = 0; i < 1000 && looked.empty(); ++i) {
        looked = control.failure();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return;
    }
    try {
      control.gather("");
    } catch (const Error& error) {
      control.abort(error.message());
      throw;
    }
  });
  CHECK(errors[0] == "rank 2: a fault of the test");
  CHECK(looked == "rank 2: a fault of the test");
}

TEST_CASE("the news of a failure keeps its kind, and other text is the communicator's") {
  for (const ErrorKind kind : {ErrorKind::out_of_memory, ErrorKind::device, ErrorKind::bad_input}) {
    const Error back = error_of(news_of(of_rank(2, Error(kind, "two\nlines"))));
    CHECK(back.kind() == kind);
    CHECK(back.message() == "rank 2: two\nlines");
    CHECK(status_of(back) == (kind == ErrorKind::bad_input ? 2 : 3));
  }
  CHECK(of_rank(1, Error(ErrorKind::device, "rank 5: x")).message() == "rank 5: x");
  for (const char* text : {"", "rank 3: its process has ended", "rank 1: a\nb"}) {
    CHECK(error_of(text).kind() == ErrorKind::communicator);
    CHECK(error_of(text).message() == text);
  }
}

TEST_CASE("a rank that never comes is named after the timeout") {
  const auto errors = run(
      3, [](Control&) {}, 0.5, 2);
  CHECK(errors[0].starts_with("rank 2 did not come to rank 0 within 0.5 s: "));
}

TEST_CASE("all ranks that do not answer are named") {
  const auto errors = run(
      4,
      [](Control& control) {
        if (control.rank() % 2 == 0)
          control.gather("");
        else
          std::this_thread::sleep_for(std::chrono::milliseconds(900));
      },
      0.6);
  CHECK(errors[0] == "rank 1, rank 3: no answer in time");
}

TEST_CASE("where nobody listens is said with address and port") {
  const int port = free_port();
  try {
    tcp_control({Launcher::torchrun, 1, 2, 0, "localhost", port}, 0.2);
    FAIL("met nobody");
  } catch (const Error& error) {
    CHECK(error.message() ==
          "rank 0 is not there: nobody listens at localhost port " + std::to_string(port));
  }
}

TEST_CASE("strangers at the port do not keep the ranks from meeting") {
  const int port = free_port();
  std::vector<std::thread> threads;
  std::vector<std::string> all;
  threads.emplace_back([&] {
    all = tcp_control({Launcher::torchrun, 0, 2, 0, "localhost", port}, 20)->gather("a");
  });
  std::vector<Socket> strangers;
  const auto stranger = [&](MessageKind kind, const char* text) {
    strangers.push_back(connect_to("localhost", port, deadline_in(20)));
    strangers.back().send({kind, text}, deadline_in(5));
  };
  stranger(MessageKind::gather, "no hello");
  stranger(MessageKind::gather, "1");
  for (const char* no_rank_of_two : {"0", "-1", "2", "7", "x", ""})
    stranger(MessageKind::hello, no_rank_of_two);
  threads.emplace_back([&] {
    tcp_control({Launcher::torchrun, 1, 2, 1, "localhost", port}, 20)->gather("b");
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(all == std::vector<std::string>{"a", "b"});
}

TEST_CASE("who comes as a rank that is there is sent away, and the rank stays") {
  const int port = free_port();
  std::vector<std::string> all;
  std::thread rank_0([&] {
    all = tcp_control({Launcher::torchrun, 0, 3, 0, "localhost", port}, 20)->gather("a");
  });
  const auto rank_1 = tcp_control({Launcher::torchrun, 1, 3, 1, "localhost", port}, 20);
  const Socket second = connect_to("localhost", port, deadline_in(20));
  second.send({MessageKind::hello, "1"}, deadline_in(5));
  const auto rank_2 = tcp_control({Launcher::torchrun, 2, 3, 2, "localhost", port}, 20);
  std::thread gathers([&] { CHECK(rank_1->gather("b").size() == 3); });
  CHECK(rank_2->gather("c").size() == 3);
  gathers.join();
  rank_0.join();
  CHECK(all == std::vector<std::string>{"a", "b", "c"});
}

// Strings stand behind their lengths in eight bytes each.
TEST_CASE("an answer that is cut short is an error of the communicator, and no string") {
  const std::string one("\1\0\0\0\0\0\0\0x", 9), empty(8, '\0');
  const auto answered = [&](const std::string& bytes) -> std::string {
    const Socket listening = listen_at(0);
    std::thread rank_0([&] {
      const Socket socket = accept_from(listening, deadline_in(20));
      CHECK(socket.receive(deadline_in(20)).bytes == "1");  // who it is
      CHECK(socket.receive(deadline_in(20)).bytes == "b");
      socket.send({MessageKind::gather, bytes}, deadline_in(20));
    });
    std::string found;
    try {
      const Launch launch{Launcher::torchrun, 1, 2, 1, "localhost", port_of(listening)};
      for (const std::string& part : tcp_control(launch, 20)->gather("b")) found += part + ";";
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::communicator);
      found = error.message();
    }
    rank_0.join();
    return found;
  };
  CHECK(answered(one + empty) == "x;;");
  CHECK(answered("") == "");
  CHECK(answered(one.substr(0, 8)) == "a message is cut short");
  CHECK(answered(one + one.substr(0, 7)) == "a message is cut short");
  CHECK(answered(std::string(8, '\xff') + one) == "a message is cut short");
}

TEST_CASE("a port in use is named") {
  const Socket taken = listen_at(0);
  const int port = port_of(taken);
  CHECK_THROWS_WITH_AS(listen_at(port), doctest::Contains("port"), Error);
}

TEST_CASE("a rank's GPU is counted among the ranks of its host") {
  const std::vector<std::string> hosts{"a", "b", "a", "a", "b"};
  const int expected[] = {0, 0, 1, 2, 1};
  for (int rank = 0; rank < 5; ++rank) CHECK(local_rank_of(hosts, rank) == expected[rank]);
}

}  // namespace
}  // namespace plimsoll::runtime::comm
