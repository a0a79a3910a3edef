/*
 * A stand-in for libcuda.so.1 that needs no GPU. It has the driver's signatures and rules, and is stricter if the driver leaves
 * behaviour undefined. Device memory is a memfd, so two processes that exchange a handle share the bytes. Device addresses are
 * reserved and not accessible to the host, so a host access through one faults, like on a GPU.
 *
 * One lock guards all state. Streams are worker threads that hold the lock while they read their queue and release it while they copy.
 *
 * Environment, read at cuInit:
 *   FAKECUDA_DEVICES=n         number of devices (default 1; 0 makes cuInit fail with 100)
 *   FAKECUDA_MEMORY=bytes      memory of each device (default 1 GiB), counted per process
 *   FAKECUDA_UUIDS=u,u         UUIDs of the devices, 32 hexadecimal digits each, dashes allowed
 *   FAKECUDA_MIG=1             devices are MIG instances: the UUIDs of cuDeviceGetUuid_v2 and cuDeviceGetUuid differ
 *   CUDA_VISIBLE_DEVICES=1,0   visible devices, in order: numbers or UUIDs (visible.c)
 *   FAKECUDA_DRIVER_VERSION=v  result of cuDriverGetVersion (default 13000)
 *   FAKECUDA_NO=vmm,fd,ipc,p2p,pool,rohost,managed,concurrent,multicast,green  features that the devices lack
 *   FAKECUDA_FABRIC=1          fabric handles work; "noimex": the device reports support, and the driver refuses them with 800
 *   FAKECUDA_STUB=1            cuInit returns 34, like the toolkit's stub library
 *   FAKECUDA_IPC_REOPEN=count  a second cuIpcOpenMemHandle of a handle is counted, like in newer drivers; default: error 208
 *   FAKECUDA_DELAY_US=n        delay of queued work if no caller waits for it, in microseconds (default 2000)
 *   FAKECUDA_FAIL=name:k:code  the k-th call (from 1) of the function, or of any function for *, fails with code
 *   FAKECUDA_CONTROL=prefix    the file prefix.PID, if it exists, is a page shared with the test: counters and the failure
 *                              switch (struct control)
 *
 * Memory, pinned pages, modules and instantiated graphs are released immediately, without waiting for the device. Queued work that
 * uses them ends with a fault.
 *
 * A capture follows the programming guide. A call on the context fails while any of its streams captures, and the capture is
 * invalidated. So is a call that may wait for the device, if the thread's capture mode does not allow it.
 *
 * A function that is made to fail does nothing. If the code is one of a fault on the device (700 and above), a function that
 * releases a resource does so: the context, with all of its resources, is lost. cuDevicePrimaryCtxRelease always does so.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
typedef uint64_t devptr;
typedef uint64_t handle; /* every opaque pointer and generic handle of the API: a table index, never an address */

enum {
	OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
	INVALID_IMAGE = 200, INVALID_CONTEXT = 201, ALREADY_MAPPED = 208, PEER_ACCESS_UNSUPPORTED = 217, INVALID_PTX = 218,
	MAP_FAILED_ = 205, COOPERATIVE_LAUNCH_TOO_LARGE = 720, GRAPH_EXEC_UPDATE_FAILURE = 910, INVALID_CLUSTER_SIZE = 912, OPERATING_SYSTEM = 304, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
	LAUNCH_OUT_OF_RESOURCES = 701, PEER_ACCESS_ALREADY_ENABLED = 704, PEER_ACCESS_NOT_ENABLED = 705,
	PRIMARY_CONTEXT_ACTIVE = 708, CONTEXT_IS_DESTROYED = 709, HOST_MEMORY_ALREADY_REGISTERED = 712,
	HOST_MEMORY_NOT_REGISTERED = 713, NOT_PERMITTED = 800, NOT_SUPPORTED = 801, STREAM_CAPTURE_UNSUPPORTED = 900,
	STREAM_CAPTURE_INVALIDATED = 901, STREAM_CAPTURE_UNMATCHED = 903, STREAM_CAPTURE_UNJOINED = 904,
	STREAM_CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, STREAM_CAPTURE_WRONG_THREAD = 908, UNKNOWN = 999,
};

enum { MAX_DEVICES = 16, GRANULARITY = 2 << 20, PATH = 64 };

/* The counted kinds, in the order of control.live. */
enum live {
	LIVE_ALLOCATIONS, LIVE_MAPPINGS, LIVE_RESERVATIONS, LIVE_HANDLES, LIVE_IPC, LIVE_STREAMS, LIVE_EVENTS, LIVE_CONTEXTS,
	LIVE_MODULES, LIVE_GRAPHS, LIVE_POOLS, LIVE_HOST, LIVE_KINDS
};

/* control is the page of FAKECUDA_CONTROL. The test writes fail_*, the library writes the rest. */
struct control {
	uint64_t magic;                     /* set by the library: 'FAKECUDA' */
	_Atomic int64_t calls;              /* counted calls so far */
	_Atomic int64_t fail_after;         /* > 0: the call that brings it to 0 fails; < 0: every call fails */
	_Atomic int64_t fail_code;
	_Atomic int64_t failed;             /* number of calls that were made to fail */
	_Atomic int64_t live[LIVE_KINDS];
	char last_failed[64];               /* the function that was made to fail last */
	char fail_name[64];                 /* only calls of this function count; empty: all */
};

/* ---- core.c: lock, handle table, failures, counters ---- */
enum type { T_NONE, T_CTX, T_STREAM, T_EVENT, T_MODULE, T_FUNC, T_GRAPH, T_EXEC, T_NODE, T_POOL, T_VMM, T_COND, T_USER, T_LIBRARY, T_KERNEL,
	T_GREEN, T_DESC };

extern pthread_mutex_t big;
extern __thread bool in_callback;
extern pthread_cond_t changed; /* broadcast when queued work makes progress */
handle obj_add(void *p, enum type t);
void *obj_get(handle h, enum type t);
void obj_del(handle h);
void live_add(enum live kind, int64_t n);
void *zalloc(size_t n);
size_t round_up(size_t n, size_t to);
uint64_t now_ns(void);
uint64_t random64(void);
const char *env_get(const char *name);
bool env_is(const char *name, const char *value);
bool lacks(const char *feature);

/* enter counts the call. It returns the error of a library that is not initialised, and sets *inject if this call must fail. */
CUresult enter(const char *name, CUresult *inject);
bool is_fault(CUresult r);
#define API(name, params, call)                                                                                                \
	EXPORT CUresult name params;                                                                                           \
	EXPORT CUresult name params {                                                                                          \
		CUresult inject = OK, r = enter(#name, &inject);                                                               \
		if (r || inject)                                                                                               \
			return r ? r : inject;                                                                                 \
		pthread_mutex_lock(&big);                                                                                      \
		r = call;                                                                                                      \
		pthread_mutex_unlock(&big);                                                                                    \
		return r;                                                                                                      \
	}
/* API_RELEASE is API for a call that releases a resource: a forced fault is reported after the release. */
#define API_RELEASE(name, params, call)                                                                                        \
	EXPORT CUresult name params;                                                                                           \
	EXPORT CUresult name params {                                                                                          \
		CUresult inject = OK, r = enter(#name, &inject);                                                               \
		if (r || (inject && !is_fault(inject)))                                                                        \
			return r ? r : inject;                                                                                 \
		pthread_mutex_lock(&big);                                                                                      \
		r = call;                                                                                                      \
		pthread_mutex_unlock(&big);                                                                                    \
		return r ? r : inject;                                                                                         \
	}

/* ---- device.c ---- */
struct device {
	int physical; /* its number before CUDA_VISIBLE_DEVICES */
	uint8_t uuid[16], gpu_uuid[16];
	uint64_t total, used;
	struct ctx *primary;
	int primary_refs;
	handle default_pool, current_pool;
};
extern int device_count;
extern struct device devices[MAX_DEVICES];
CUresult devices_init(void);
int device_by_uuid(const uint8_t uuid[16]);

/* ---- visible.c ---- */
int visible_devices(const char *list, const struct device *all, int count, int *out, int max);

/* ---- context.c ---- */
struct ctx {
	handle self;
	int dev;
	bool primary, dead;
	unsigned flags;
	CUresult sticky; /* the fault on the device that every call in the context reports */
	struct stream *null_stream;
	struct stream *marker; /* executes the records of cuCtxRecordEvent; started by the first */
	bool peer[MAX_DEVICES];
	uint64_t id;
	struct green *green; /* the green context that it is made from */
};
struct ctx *ctx_new(int dev, unsigned flags, bool primary);
void ctx_end(struct ctx *c);
CUresult current(struct ctx **c);
struct ctx *current_or_null(void);

/* ---- range.c, memory.c, host.c ---- */
enum kind { K_ALLOC, K_IPC, K_VMM, K_POOL, K_MANAGED, K_HOST, K_GLOBAL };

/* phys is memory that any number of handles and ranges share. */
struct phys {
	int refs, fd, dev;
	size_t size;
	void *alias; /* the library's mapping of the bytes */
	unsigned types; /* handle types requested at creation */
	bool counted, exported, imported;
	uint64_t nonce;
	struct multicast *mc; /* a multicast object, which has no bytes of its own */
};
/* range is a range of device addresses that maps memory, or pinned host memory at its address. */
struct range {
	struct range *next;
	devptr base;
	size_t size, off;
	enum kind kind;
	struct phys *p;
	struct ctx *ctx;
	int dev, opens;
	unsigned flags, access[MAX_DEVICES]; /* bit 0 read, bit 1 write */
	handle pool;
	uint64_t id;
	bool on_host; /* memory of a pool that the host can access */
	struct page *pages; /* managed memory: the advice for each page of 4 KiB */
};
struct phys *phys_new(int dev, size_t size, unsigned types, CUresult *r);
struct phys *phys_adopt(int fd, int dev, size_t size);
void phys_drop(struct phys *p);
struct range *range_new(enum kind k, struct phys *p, size_t size, struct ctx *c, int dev);
void range_free(struct range *r);
struct range *range_at(devptr p);
struct range *range_first(void);
devptr reserve_va(size_t size, size_t align);
void unreserve_va(devptr p, size_t size);
void range_insert(struct range *r);
uint8_t *bytes_of(struct range *r, devptr p);
CUresult alloc_range(enum kind k, size_t bytes, struct ctx *c, devptr *out);

/* ---- queue.c, stream.c, event.c ---- */
enum op_kind { OP_COPY, OP_BOX, OP_PREFETCH, OP_SET, OP_RECORD, OP_WAIT, OP_LAUNCH, OP_FREE, OP_WRITE_VALUE, OP_WAIT_VALUE, OP_HOST, OP_NOP, OP_CHILD, OP_COND, OP_RESET };

/* op is one queued operation, or a node of a graph. */
struct op {
	struct op *next;
	enum op_kind kind;
	uint64_t ticket, due;
	struct ctx *ctx;
	/* copy: addresses, each of the device or the host; snap holds a pageable source's bytes at the time of the call */
	uint64_t dst, src;
	bool dst_host, src_host;
	size_t n;
	void *snap;
	/* set */
	uint32_t value;
	unsigned width;
	size_t rows, pitch; /* 0 rows: one */
	/* events, with the state of the event at that time */
	struct event *ev;
	uint64_t seq;
	/* launch */
	struct func *f;
	unsigned grid[3], block[3], shared, cluster[3];
	bool cooperative;
	int priority;
	uint8_t *args;
	/* copies of a box, also of several */
	struct box *box;
	int nboxes;
	/* values in memory */
	uint64_t value64;
	unsigned cond, bytes;
	/* host function */
	void (*fn)(void *);
	void *data;
	/* preceding work of other streams */
	struct dep { struct stream *s; uint64_t ticket; } *deps;
	int ndeps;
	/* node of a graph */
	handle node;
	struct graph *owner;
	struct op **preds;
	int npreds, mark;
	uint32_t id;
	handle origin; /* of an instantiated or cloned node: the node that it was made from */
	bool disabled;
	struct graph *child[8]; /* a child graph, or the bodies of a condition */
	int nchild, cond_type;
	struct condition *condition;
	handle exec; /* the instantiated graph that contains it */
	bool fault;  /* a resource that it uses was released while it was queued */
};
struct stream {
	handle self;
	struct stream *next;
	int refs;
	struct ctx *ctx;
	unsigned flags;
	int priority;
	bool null, stop, kicked, of_thread;
	struct op *head, *tail;
	uint64_t issued, done; /* tickets */
	pthread_t thread;
	bool started;
	uint64_t id;
	/* capture */
	struct graph *capture;
	bool origin, invalid, unjoined, into;
	int mode;
	pthread_t capture_thread;
	uint64_t capture_id;
	struct op **last; /* the nodes that the next captured operation depends on */
	int nlast;
};
struct stream *stream_new(struct ctx *c, unsigned flags, int priority, bool null);
void stream_put(struct stream *s);
void stream_close(struct stream *s);
CUresult stream_of(handle h, struct stream **s);
struct stream *default_stream(struct ctx *c);
extern __thread bool per_thread_default;
CUresult submit(struct stream *s, struct op *o); /* takes ownership of o; adds it to the queue, or to the graph being captured */
void drain(struct stream *s, uint64_t ticket);
void drain_ctx(struct ctx *c, bool blocking_only);
bool fault_users(devptr p, size_t n);
void fault_exec(handle exec);
void drop_op(struct op *o);
struct op *op_new(enum op_kind k, struct ctx *c);
struct op *op_clone(const struct op *o);
CUresult run_op(struct op *o); /* called with the lock held, which it releases while it works */
void invalidate(struct graph *capture);
bool prohibited(void);
bool ctx_captures(struct ctx *c);
bool legacy_captured(struct ctx *c, bool spoil);
struct stream *stream_first(void);

/* evstate may be in memory shared between processes. */
struct evstate {
	_Atomic uint64_t recorded, done, ns;
};
struct event {
	handle self;
	int refs;
	struct ctx *ctx;
	unsigned flags;
	int fd;
	uint64_t nonce;
	bool foreign;
	struct evstate *st, own;
	struct stream *last; /* the stream of the last record in this process; a waiter wakes it */
	uint64_t last_ticket;
	struct graph *capture;
	struct stream *captured_in;
	struct op **captured; /* the nodes that it represents */
	int ncaptured;
};
void event_put(struct event *e);
void event_kick(struct event *e);
CUresult event_record(struct event *e, struct stream *s);

/* ---- box.c, managed.c ---- */
struct operand { uint64_t at; bool host; uint64_t pitch, rows; };
struct box { struct operand dst, src; uint64_t width, height, depth; };
CUresult run_boxes(struct op *o);
bool boxes_use(const struct op *o, devptr p, size_t n);
CUresult run_prefetch(struct op *o);

/* ---- copy.c ---- */
bool is_host(uint64_t p);
bool pinned(uint64_t p, size_t n);
CUresult wait_idle(struct ctx *c);
CUresult copy_bytes(uint64_t dst, bool dst_host, uint64_t src, bool src_host, size_t n);
CUresult do_copy(struct op *o);
CUresult do_set(struct op *o);
CUresult check_device(struct ctx *c, devptr p, size_t n, bool write, bool kernel);

/* ---- ptx.c, module.c, kernels.c ---- */
struct param { size_t off, size; char type; /* 'f', 'i' or 'p' by PTX type; 'b' for bytes */ };
struct func {
	handle self;
	struct func *next;
	struct module *mod;
	char name[128];
	struct param params[32];
	int nparams, max_threads, static_shared;
	int dynamic_limit, carveout, large_clusters, scheduling; /* attributes 8, 9, 14 and 15 */
	size_t args_size;
};
struct global { struct global *next; char name[128]; devptr p; size_t size; };
struct module {
	handle self;
	struct ctx *ctx;
	struct func *funcs;
	struct global *globals;
};
CUresult ptx_parse(const char *p, struct module *m);
CUresult run_kernel(struct op *o);
/* launch_attr is CUlaunchAttribute: an id and a union of 64 bytes. */
struct launch_attr { int32_t id, pad; union { int32_t i[16]; uint32_t u[16]; handle h[8]; } v; };
struct launch_config { unsigned grid[3], block[3], shared; handle stream; const struct launch_attr *attrs; unsigned nattrs; };
CUresult launch_cluster(const struct launch_config *c, struct func *f, unsigned *size);
CUresult module_load(struct module **out, const void *image, struct ctx *c);
void module_free(struct module *m);
size_t image_size(const void *image);
CUresult jit_check(unsigned n, const int *options, void **values);
void jit_log(CUresult r, unsigned n, const int *options, void **values);
CUresult module_global(struct module *m, const char *name, devptr *p, size_t *size);
CUresult func_attribute(int *out, int attr, handle h);
CUresult func_set(handle h, int attr, int v);
CUresult param_info(handle h, size_t i, size_t *off, size_t *size);
CUresult launch_op(struct op **out, handle f, const struct launch_config *c, struct ctx *ctx, void **params, void **extra);
CUresult occupancy(int *blocks, handle f, int threads, size_t shared);

/* ---- graph.c, graphnode.c, graphexec.c, userobject.c ---- */
struct condition { handle self; struct graph *graph; uint32_t value, initial; bool assign, used; int refs; };
struct graph {
	handle self;
	struct op *head, *tail; /* in the order in which the nodes were added; of an executable graph, in the order of execution */
	size_t n;
	uint32_t ids;
	struct ctx *ctx;
	uint64_t flags;
	bool body, inner; /* a body of a condition; owned by a node */
	struct condition *conditions[8];
	int nconditions;
	struct held { struct user *u; unsigned n; } held[64];
	int nheld;
};
void graph_append(struct graph *g, struct op *o, struct op **preds, int npreds);
struct graph *graph_new(void);
struct graph *graph_copy(struct graph *g, bool exec, CUresult *r);
void graph_free(struct graph *g);
CUresult graph_submit(struct graph *x, struct stream *s, handle exec);
CUresult run_condition(struct op *o);
void run_reset(struct op *o);
void set_condition(handle h, uint32_t value);
void list_set(struct op ***list, int *n, struct op **from, int count);
bool plain_edges(const void *data, size_t n);
void list_add(struct op ***list, int *n, struct op *o);
CUresult kernel_handle(handle *f, handle kernel);
struct func *func_of(handle h);
void library_forget(struct ctx *c);
void user_drop(struct user *u, unsigned n);
void user_keep(struct user *u, unsigned n);

/* ---- ipc.c: records that identify a descriptor of another process ---- */
struct record { /* 64 bytes */
	char magic[8];
	uint32_t pid;
	int32_t fd;
	uint64_t nonce, size;
	uint8_t uuid[16];
	uint64_t reserved, sum;
};
void record_fill(struct record *rec, const char magic[8], int fd, uint64_t nonce, uint64_t size, const uint8_t uuid[16]);
CUresult record_open(const struct record *rec, const char magic[8], int *fd);

struct location { int32_t type, id; };
struct alloc_prop { int32_t type; uint32_t types; struct location loc; void *win32; uint8_t flags[8]; };
struct vmm { handle self; struct phys *p; int refs; struct alloc_prop prop; };
handle vmm_add(struct phys *p, const struct alloc_prop *prop);
void multicast_free(struct multicast *m);
bool multicast_fill(struct ctx *c, devptr p, uint32_t value, uint64_t count);
bool pool_allows(handle pool, int dev, bool write);
void record_sign(struct record *rec, uint64_t reserved);
void checkpoint_init(void);
void checkpoint_wait(void);
struct access_desc { struct location loc; uint32_t flags; };

#endif
