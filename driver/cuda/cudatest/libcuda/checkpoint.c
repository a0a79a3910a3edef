/* Process checkpoint: another process, or this one, is locked, its memory is moved to the host, and back. */
#define _GNU_SOURCE
#include "fake.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { NOT_READY_TIMEOUT = 600 };

/* status is in a memfd of the process, which the library of another process finds in /proc. */
struct status { _Atomic int state; _Atomic int inside; _Atomic int tid; };
static struct status *own;
static const char name[] = "fakecuda-checkpoint";

/* checkpoint_init makes the state visible to other processes. */
void checkpoint_init(void) {
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, 4096))
		return;
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		own = p;
	if (own)
		own->tid = (int)getpid();
}

static __thread bool exempt; /* the thread makes a call for checkpoints */

/* checkpoint_wait blocks while the process is locked. It is called without the lock. */
void checkpoint_wait(void) {
	while (own && !exempt && own->state != RUNNING)
		usleep(500);
}

/* open_status maps the state of a process. */
static struct status *open_status(int pid) {
	char dir[64], path[400], link[300];
	if (pid == (int)getpid())
		return own;
	snprintf(dir, sizeof dir, "/proc/%d/fd", pid);
	DIR *d = opendir(dir);
	struct status *s = NULL;
	for (struct dirent *e; d && !s && (e = readdir(d));) {
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		ssize_t n = readlink(path, link, sizeof link - 1);
		if (n <= 0)
			continue;
		link[n] = 0;
		if (!strstr(link, name))
			continue;
		int fd = open(path, O_RDWR | O_CLOEXEC);
		void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (fd >= 0)
			close(fd);
		if (p != MAP_FAILED)
			s = p;
	}
	if (d)
		closedir(d);
	return s;
}

static void close_status(struct status *s) {
	if (s && s != own)
		munmap(s, 4096);
}

/* change moves a process from one state to another. */
static CUresult change(int pid, int from, int to) {
	struct status *s = open_status(pid);
	CUresult r = INVALID_VALUE;
	if (s) {
		int expected = from;
		r = atomic_compare_exchange_strong(&s->state, &expected, to) ? OK : ILLEGAL_STATE;
	}
	close_status(s);
	return r;
}

/* CALL is API for calls that a locked process may make. */
#define CALL(fn, params, call)                                                                                                 \
	EXPORT CUresult fn params;                                                                                             \
	EXPORT CUresult fn params {                                                                                            \
		exempt = true;                                                                                                 \
		CUresult inject = OK, r = enter(#fn, &inject);                                                                 \
		exempt = false;                                                                                                \
		if (r || inject)                                                                                               \
			return r ? r : inject;                                                                                 \
		return call;                                                                                                   \
	}

static CUresult state(int pid, int *out) {
	struct status *s = open_status(pid);
	if (s && out)
		*out = s->state;
	CUresult r = s && out ? OK : INVALID_VALUE;
	close_status(s);
	return r;
}
CALL(cuCheckpointProcessGetState, (int pid, int *out), state(pid, out))

static CUresult thread_id(int pid, int *out) {
	struct status *s = open_status(pid);
	if (s && out)
		*out = s->tid;
	CUresult r = s && out ? OK : INVALID_VALUE;
	close_status(s);
	return r;
}
CALL(cuCheckpointProcessGetRestoreThreadId, (int pid, int *out), thread_id(pid, out))

/* The arguments have 64 bytes, of which the reserved ones must be 0. */
static bool zeroed(const void *p, size_t skip) {
	const uint8_t *b = p;
	for (size_t i = skip; p && i < 64; i++)
		if (b[i])
			return false;
	return true;
}
CALL(cuCheckpointProcessLock, (int pid, const void *args), zeroed(args, 4) ? change(pid, RUNNING, LOCKED) : INVALID_VALUE)
CALL(cuCheckpointProcessCheckpoint, (int pid, const void *args), zeroed(args, 0) ? change(pid, LOCKED, CHECKPOINTED) : INVALID_VALUE)
CALL(cuCheckpointProcessUnlock, (int pid, const void *args), zeroed(args, 0) ? change(pid, LOCKED, RUNNING) : INVALID_VALUE)

struct restore_args { const uint8_t (*pairs)[32]; unsigned n, pad; void *out; uint8_t rest[40]; };

/* restore returns the process to the locked state. Pairs of UUIDs must name each device of this host once. */
static CUresult restore(int pid, const struct restore_args *a) {
	if (a && (a->pad || a->out || (a->n && !a->pairs) || a->n > MAX_DEVICES))
		return INVALID_VALUE;
	for (unsigned i = 0; a && i < a->n; i++)
		if (device_by_uuid(a->pairs[i] + 16) < 0)
			return INVALID_DEVICE;
	return change(pid, CHECKPOINTED, LOCKED);
}
CALL(cuCheckpointProcessRestore, (int pid, const struct restore_args *args), restore(pid, args))
