// Messages between the processes of a group that do not wait for ever.
#pragma once

// The C++ bindings that MPI 3 removed do not compile without warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <string>
#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::runtime::comm {

// Error{communicator} with MPI's own text unless `code` is MPI_SUCCESS.
void expect_mpi(int code, const char* what);

struct MpiGroup {
  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0, size = 1;
  double timeout_seconds = 600;
  std::vector<int> world;  // its ranks in MPI's world, for messages
};

// Sends and receives of one rank that are under way together. Two ranks' messages meet in the order
// in which they were given.
class MpiExchange {
 public:
  MpiExchange(const MpiGroup& group, const char* what) : group_(group), what_(what) {}
  MpiExchange(const MpiExchange&) = delete;
  MpiExchange& operator=(const MpiExchange&) = delete;
  ~MpiExchange();  // gives up what is under way

  void send(int to, const void* data, Bytes bytes);
  void receive(int from, void* data, Bytes bytes);
  // Error{communicator}: names the ranks that have not answered within the timeout.
  void finish();

 private:
  struct Request {
    MPI_Request request;
    int peer;
    bool receives;
  };
  bool test();  // true: all are done
  std::string missing() const;

  const MpiGroup& group_;
  const char* what_;
  std::vector<Request> requests_;
};

}  // namespace plimsoll::runtime::comm
