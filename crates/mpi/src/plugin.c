/* The table of MPI's functions that ringpull calls, in types that are the same for every MPI.
 *
 * build.rs compiles this file once with the compiler of each binary interface of MPI (Open MPI; MPICH, which Intel MPI
 * shares; the standard one of MPI 5). What differs between them, handles, constants and the layout of a status, stays
 * in here. table.rs has the same table in Rust. Nothing is linked: the functions of MPI are those of the library that the
 * process has loaded before (load.rs), and the C library is not used.
 */
#include <mpi.h>

#if defined(OPEN_MPI)
#define INTERFACE openmpi
#elif defined(MPICH_VERSION) || defined(I_MPI_VERSION)
#define INTERFACE mpich
#elif defined(MPI_ABI_VERSION)
#define INTERFACE standard
#endif
#define TEXT_OF(word) #word
#define TEXT(word) TEXT_OF(word)

#ifdef PROBE
/* build.rs reads which interface the compiler has. */
ringpull interface INTERFACE
#else

/* The element types that every MPI sums, as `element` in table.rs numbers them. */
enum { F32, F64, I8, U8, I32, I64 };

/* A communicator of any MPI. */
typedef unsigned long long comm;

/* The end of one request. */
struct end {
  int index; /* among the requests that were asked about */
  int error; /* 0, or MPI's code of what failed */
};

/* An MPI with fault tolerance has these, from some version on: they are null elsewhere. */
extern int MPIX_Comm_get_failed(MPI_Comm, MPI_Group *) __attribute__((weak));
extern int MPIX_Comm_ack_failed(MPI_Comm, int, int *) __attribute__((weak));
extern int MPIX_Comm_agree(MPI_Comm, int *) __attribute__((weak));

static MPI_Comm of(comm handle) { return (MPI_Comm)handle; }
static comm from(MPI_Comm handle) { return (comm)handle; }

static MPI_Datatype type_of(int dtype) {
  switch (dtype) {
  case F32: return MPI_FLOAT;
  case F64: return MPI_DOUBLE;
  case I8: return MPI_INT8_T;
  case U8: return MPI_UINT8_T;
  case I32: return MPI_INT32_T;
  case I64: return MPI_INT64_T;
  default: return MPI_DATATYPE_NULL;
  }
}

static comm world(void) { return from(MPI_COMM_WORLD); }
static comm self(void) { return from(MPI_COMM_SELF); }

static int init_thread(int level, int *provided) { return MPI_Init_thread(0, 0, level, provided); }

static int set_errors_return(comm of_ranks) { return MPI_Comm_set_errhandler(of(of_ranks), MPI_ERRORS_RETURN); }
static int comm_rank(comm of_ranks, int *rank) { return MPI_Comm_rank(of(of_ranks), rank); }
static int comm_size(comm of_ranks, int *size) { return MPI_Comm_size(of(of_ranks), size); }

static int comm_split(comm of_ranks, int color, int key, comm *made) {
  MPI_Comm part = MPI_COMM_NULL;
  int code = MPI_Comm_split(of(of_ranks), color, key, &part);
  *made = from(part);
  return code;
}

static int comm_split_hosts(comm of_ranks, int key, comm *made) {
  MPI_Comm part = MPI_COMM_NULL;
  int code = MPI_Comm_split_type(of(of_ranks), MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &part);
  *made = from(part);
  return code;
}

static int comm_free(comm of_ranks) {
  MPI_Comm part = of(of_ranks);
  return MPI_Comm_free(&part);
}

static int probe(comm of_ranks) {
  int flag;
  return MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, of(of_ranks), &flag, MPI_STATUS_IGNORE);
}

static int isend(const void *data, int bytes, int to, int tag, comm of_ranks, void *request) {
  return MPI_Isend(data, bytes, MPI_BYTE, to, tag, of(of_ranks), request);
}

static int issend(const void *data, int bytes, int to, int tag, comm of_ranks, void *request) {
  return MPI_Issend(data, bytes, MPI_BYTE, to, tag, of(of_ranks), request);
}

static int irecv(void *data, int bytes, int source, int tag, comm of_ranks, void *request) {
  return MPI_Irecv(data, bytes, MPI_BYTE, source, tag, of(of_ranks), request);
}

static int testsome(int count, void *requests, int *indices, void *statuses, int *finished, struct end *ends) {
  MPI_Status *status = statuses;
  int code = MPI_Testsome(count, requests, finished, indices, statuses);
  if (*finished == MPI_UNDEFINED || *finished < 0) *finished = 0;
  for (int at = 0; at < *finished; ++at) {
    ends[at].index = indices[at];
    ends[at].error = code == MPI_SUCCESS ? MPI_SUCCESS : status[at].MPI_ERROR;
  }
  return code;
}

/* The bytes of a message that was received, by the status at this place. */
static int get_count(const void *statuses, int at, int *bytes) {
  return MPI_Get_count((const MPI_Status *)statuses + at, MPI_BYTE, bytes);
}

/* Whether a request is done. It stays one that is under way to MPI. */
static int is_done(void *request, int *flag) {
  return MPI_Request_get_status(*(MPI_Request *)request, flag, MPI_STATUS_IGNORE);
}

static int wait(void *request, void *status) { return MPI_Wait(request, status); }

static int bcast(void *data, int bytes, int root, comm of_ranks) { return MPI_Bcast(data, bytes, MPI_BYTE, root, of(of_ranks)); }

static int allreduce(void *data, int count, int dtype, comm of_ranks) {
  return MPI_Allreduce(MPI_IN_PLACE, data, count, type_of(dtype), MPI_SUM, of(of_ranks));
}

static int allgather(const void *data, int bytes, void *out, comm of_ranks) {
  return MPI_Allgather(data, bytes, MPI_BYTE, out, bytes, MPI_BYTE, of(of_ranks));
}

static int alltoall(const void *data, int bytes, void *out, comm of_ranks) {
  return MPI_Alltoall(data, bytes, MPI_BYTE, out, bytes, MPI_BYTE, of(of_ranks));
}

static int reduce_scatter(const void *data, void *out, int count, int dtype, comm of_ranks) {
  return MPI_Reduce_scatter_block(data, out, count, type_of(dtype), MPI_SUM, of(of_ranks));
}

static int survives_losses(void) { return MPIX_Comm_get_failed && MPIX_Comm_ack_failed && MPIX_Comm_agree; }

/* How many ranks are known to have failed, and which: those that fit, in the order in which they failed. */
static int get_failed(comm of_ranks, int *ranks, int most, int *count) {
  MPI_Group failed, all;
  int code = MPIX_Comm_get_failed(of(of_ranks), &failed);
  if (code != MPI_SUCCESS) return code;
  MPI_Group_size(failed, count);
  if (*count == 0) return MPI_SUCCESS;
  int wanted = *count < most ? *count : most;
  if (wanted > 0) {
    code = MPI_Comm_group(of(of_ranks), &all);
    if (code == MPI_SUCCESS) {
      for (int at = 0; at < wanted && code == MPI_SUCCESS; ++at)
        code = MPI_Group_translate_ranks(failed, 1, &at, all, ranks + at);
      MPI_Group_free(&all);
    }
  }
  MPI_Group_free(&failed);
  return code;
}

static int ack_failed(comm of_ranks, int count, int *acknowledged) {
  return MPIX_Comm_ack_failed(of(of_ranks), count, acknowledged);
}

static int agree(comm of_ranks, int *flag) { return MPIX_Comm_agree(of(of_ranks), flag); }

const struct {
  unsigned int version, request_bytes, status_bytes;
  const char *interface; /* scripts/wheel looks for it in what it has built */
  int single, funneled, serialized, multiple;
  int (*get_library_version)(char *, int *);
  int (*error_string)(int, char *, int *);
  int (*initialized)(int *);
  int (*finalized)(int *);
  int (*finalize)(void);
  int (*query_thread)(int *);
  int (*init_thread)(int, int *);
  comm (*world)(void);
  comm (*self)(void);
  int (*set_errors_return)(comm);
  int (*comm_rank)(comm, int *);
  int (*comm_size)(comm, int *);
  int (*comm_split)(comm, int, int, comm *);
  int (*comm_split_hosts)(comm, int, comm *);
  int (*comm_free)(comm);
  int (*probe)(comm);
  int (*isend)(const void *, int, int, int, comm, void *);
  int (*issend)(const void *, int, int, int, comm, void *);
  int (*irecv)(void *, int, int, int, comm, void *);
  int (*testsome)(int, void *, int *, void *, int *, struct end *);
  int (*is_done)(void *, int *);
  int (*get_count)(const void *, int, int *);
  int (*wait)(void *, void *);
  int (*bcast)(void *, int, int, comm);
  int (*allreduce)(void *, int, int, comm);
  int (*allgather)(const void *, int, void *, comm);
  int (*alltoall)(const void *, int, void *, comm);
  int (*reduce_scatter)(const void *, void *, int, int, comm);
  int (*survives_losses)(void);
  int (*get_failed)(comm, int *, int, int *);
  int (*ack_failed)(comm, int, int *);
  int (*agree)(comm, int *);
} ringpull_mpi = {
  2, sizeof(MPI_Request), sizeof(MPI_Status), "ringpull-plugin-" TEXT(INTERFACE),
  MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE,
  MPI_Get_library_version, MPI_Error_string, MPI_Initialized, MPI_Finalized, MPI_Finalize, MPI_Query_thread,
  init_thread, world, self, set_errors_return, comm_rank, comm_size, comm_split, comm_split_hosts, comm_free, probe,
  isend, issend, irecv, testsome, is_done, get_count, wait, bcast, allreduce, allgather, alltoall, reduce_scatter,
  survives_losses, get_failed, ack_failed, agree,
};
#endif
