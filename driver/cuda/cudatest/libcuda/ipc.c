/* Legacy IPC: 64 bytes that identify memory of another live process. */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char mem_magic[8] = "FKIPCMM";

static uint64_t checksum(const struct record *rec) {
	uint64_t h = 14695981039346656037u;
	for (size_t i = 0; i < offsetof(struct record, sum); i++)
		h = (h ^ ((const uint8_t *)rec)[i]) * 1099511628211u;
	return h;
}

void record_fill(struct record *rec, const char magic[8], int fd, uint64_t nonce, uint64_t size, const uint8_t uuid[16]) {
	_Static_assert(sizeof(struct record) == 64, "a handle is 64 bytes");
	memset(rec, 0, sizeof *rec);
	memcpy(rec->magic, magic, 8);
	rec->pid = (uint32_t)getpid();
	rec->fd = fd;
	rec->nonce = nonce;
	rec->size = size;
	memcpy(rec->uuid, uuid, 16);
	rec->sum = checksum(rec);
}

/* record_sign sets the field that a kind of record defines. */
void record_sign(struct record *rec, uint64_t reserved) {
	rec->reserved = reserved;
	rec->sum = checksum(rec);
}

/* record_open opens the descriptor of the other process. A process that dies leaves no file on disk. If the owner has released the
 * object or has exited, or its process number was reused, the random number in the object's name does not match. */
CUresult record_open(const struct record *rec, const char magic[8], int *out) {
	char path[64], name[256], want[64];
	if (memcmp(rec->magic, magic, 8) || rec->sum != checksum(rec))
		return INVALID_VALUE;
	if (rec->pid == (uint32_t)getpid() && rec->magic[2] != 'F')
		return INVALID_CONTEXT; /* the exporting process cannot open its handle, except a fabric handle */
	snprintf(path, sizeof path, "/proc/%u/fd/%d", rec->pid, rec->fd);
	ssize_t n = readlink(path, name, sizeof name - 1);
	snprintf(want, sizeof want, "/memfd:fakecuda:%016llx:", (unsigned long long)rec->nonce);
	if (n < (ssize_t)strlen(want) || memcmp(name, want, strlen(want)))
		return INVALID_HANDLE;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat st;
	if (fd < 0)
		return INVALID_HANDLE;
	if (fstat(fd, &st) || st.st_size < (off_t)rec->size) {
		close(fd);
		return INVALID_HANDLE;
	}
	*out = fd;
	return OK;
}

static CUresult get(struct record *out, devptr p) {
	struct ctx *c;
	CUresult e = current(&c);
	if (e)
		return e;
	if (lacks("ipc"))
		return NOT_SUPPORTED;
	struct range *r = range_at(p);
	if (!out || !r || r->kind != K_ALLOC)
		return INVALID_VALUE;
	/* The handle refers to the whole allocation, even if p points inside it. */
	r->p->exported = true;
	record_fill(out, mem_magic, r->p->fd, r->p->nonce, r->size, devices[r->dev].uuid);
	return OK;
}
API(cuIpcGetMemHandle, (struct record *out, devptr p), get(out, p))

/* reopen opens a handle that is open on the device. Only the context that has opened it may do so. */
static CUresult reopen(devptr *out, struct range *r, struct ctx *c) {
	if (r->ctx != c || !env_is("FAKECUDA_IPC_REOPEN", "count"))
		return ALREADY_MAPPED;
	r->opens++;
	*out = r->base;
	return OK;
}

static CUresult open_handle(devptr *out, const struct record *rec, unsigned flags) {
	struct ctx *c;
	int fd;
	CUresult e = current(&c);
	if (e)
		return e;
	if (!out || flags != 1)
		return INVALID_VALUE;
	if (lacks("ipc"))
		return NOT_SUPPORTED;
	if (rec->sum == checksum(rec))
		for (struct range *r = range_first(); r; r = r->next)
			if (r->kind == K_IPC && r->p->nonce == rec->nonce && r->ctx->dev == c->dev)
				return reopen(out, r, c);
	if ((e = record_open(rec, mem_magic, &fd)))
		return e;
	int dev = device_by_uuid(rec->uuid);
	if (dev >= 0 && dev != c->dev && lacks("p2p"))
		dev = -2;
	if (dev < 0) {
		close(fd);
		return dev == -2 ? PEER_ACCESS_UNSUPPORTED : INVALID_DEVICE;
	}
	struct stat st;
	struct phys *p = fstat(fd, &st) ? (close(fd), NULL) : phys_adopt(fd, dev, (size_t)st.st_size);
	if (!p)
		return MAP_FAILED_;
	p->nonce = rec->nonce;
	struct range *r = range_new(K_IPC, p, rec->size, c, dev);
	if (!r) {
		phys_drop(p);
		return OUT_OF_MEMORY;
	}
	*out = r->base;
	return OK;
}
API(cuIpcOpenMemHandle_v2, (devptr *out, struct record rec, unsigned flags), open_handle(out, &rec, flags))

static CUresult close_handle(devptr p) {
	struct ctx *c;
	CUresult e = current(&c);
	if (e && e != ILLEGAL_ADDRESS)
		return e;
	struct range *r = range_at(p);
	if (!r || r->kind != K_IPC || r->base != p)
		return INVALID_VALUE;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	if (--r->opens)
		return OK;
	range_free(r);
	return OK;
}
API_RELEASE(cuIpcCloseMemHandle, (devptr p), close_handle(p))
