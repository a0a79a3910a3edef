/* Copies and fills, synchronous and queued. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

/* check_device reports whether the context's device may access n bytes at p.
 * A kernel needs peer access to memory of another device; copies do not. */
CUresult check_device(struct ctx *c, devptr p, size_t n, bool write, bool kernel) {
	while (n) {
		struct range *r = range_at(p);
		if (!r)
			return INVALID_VALUE;
		if (r->p && r->p->mc) /* ordinary accesses are undefined; only multimem instructions are valid */
			return INVALID_VALUE;
		if (r->kind == K_VMM) {
			unsigned a = r->access[c->dev], need = write ? 2 : 1;
			if (!(a & need))
				return INVALID_VALUE;
		} else if (kernel && r->kind != K_HOST && r->dev != c->dev && !c->peer[r->dev] && !(r->kind == K_POOL && pool_allows(r->pool, c->dev, write))) {
			return INVALID_VALUE;
		}
		size_t piece = r->base + r->size - p;
		if (piece > n)
			piece = n;
		p += piece;
		n -= piece;
	}
	return OK;
}

bool pinned(uint64_t p, size_t n) {
	struct range *r = range_at(p);
	return r && (r->kind == K_HOST || r->kind == K_MANAGED || r->on_host) && p + n <= r->base + r->size;
}

/* piece returns the bytes at p and how many of n are contiguous, and keeps their memory alive. */
static uint8_t *piece(uint64_t p, bool host, size_t *n, struct phys **hold) {
	*hold = NULL;
	if (host)
		return (uint8_t *)p;
	struct range *r = range_at(p);
	if (!r)
		return NULL;
	if (*n > r->base + r->size - p)
		*n = r->base + r->size - p;
	if (r->p) {
		*hold = r->p;
		r->p->refs++;
	}
	return bytes_of(r, p);
}

static CUresult check_copy(struct op *o) {
	if (!o->src_host && check_device(o->ctx, o->src, o->n, false, false))
		return INVALID_VALUE;
	if (!o->dst_host && check_device(o->ctx, o->dst, o->n, true, false))
		return INVALID_VALUE;
	return OK;
}

/* copy_bytes copies n bytes and releases the lock while it does. */
CUresult copy_bytes(uint64_t dst, bool dst_host, uint64_t src, bool src_host, size_t n) {
	for (size_t left = n; left;) {
		size_t part = left;
		struct phys *h1, *h2;
		uint8_t *d = piece(dst, dst_host, &part, &h1), *s = piece(src, src_host, &part, &h2);
		if (d && s) {
			pthread_mutex_unlock(&big);
			memmove(d, s, part);
			pthread_mutex_lock(&big);
		}
		phys_drop(h1);
		phys_drop(h2);
		if (!d || !s)
			return ILLEGAL_ADDRESS;
		dst += part, src += part, left -= part;
	}
	return OK;
}

CUresult do_copy(struct op *o) {
	if (check_copy(o))
		return ILLEGAL_ADDRESS;
	return copy_bytes(o->dst, o->dst_host, o->snap ? (uint64_t)o->snap : o->src, o->src_host, o->n);
}

static CUresult set_row(struct op *o, uint64_t dst) {
	if (check_device(o->ctx, dst, o->n, true, false))
		return ILLEGAL_ADDRESS;
	for (size_t left = o->n; left;) {
		size_t n = left;
		struct phys *h;
		uint8_t *d = piece(dst, false, &n, &h);
		if (d) {
			pthread_mutex_unlock(&big);
			if (o->width == 1)
				memset(d, (int)o->value, n);
			else
				for (size_t i = 0; i + o->width <= n; i += o->width)
					memcpy(d + i, &o->value, o->width);
			pthread_mutex_lock(&big);
		}
		phys_drop(h);
		if (!d)
			return ILLEGAL_ADDRESS;
		dst += n, left -= n;
	}
	return OK;
}

CUresult do_set(struct op *o) {
	CUresult r = set_row(o, o->dst);
	for (size_t i = 1; i < o->rows && !r; i++)
		r = set_row(o, o->dst + i * o->pitch);
	return r;
}

/* wait_idle waits for the work that a synchronous call is ordered after. */
CUresult wait_idle(struct ctx *c) {
	if (legacy_captured(c, true))
		return STREAM_CAPTURE_IMPLICIT;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	if (per_thread_default) { /* also after the legacy stream, which the thread's stream synchronises with */
		struct stream *s = default_stream(c);
		drain(c->null_stream, c->null_stream->issued);
		drain(s, s->issued);
	} else {
		drain_ctx(c, true);
	}
	return c->sticky;
}

/* now executes a synchronous copy or fill after all work of the default stream and of the streams that synchronise with it. */
static CUresult now(struct op *o) {
	CUresult r = o->kind == OP_COPY ? check_copy(o) : check_device(o->ctx, o->dst, o->n, true, false);
	if (!r)
		r = wait_idle(o->ctx);
	if (!r)
		r = run_op(o);
	drop_op(o);
	return r;
}

/* on_device reports whether n bytes at p are memory of a device that the host cannot access. */
static bool on_device(uint64_t p) {
	struct range *r = range_at(p);
	return r && r->kind != K_HOST && r->kind != K_MANAGED && !r->on_host;
}

/* later queues a fill of device memory, or a copy to it, by a function without a stream. Such functions are asynchronous to the
 * host, so work of a stream that does not synchronise with the default stream may overtake them. */
static CUresult later(struct op *o) {
	CUresult r = o->kind == OP_COPY ? check_copy(o) : check_device(o->ctx, o->dst, (o->rows - 1) * o->pitch + o->n, true, false);
	if (!r && legacy_captured(o->ctx, true))
		r = STREAM_CAPTURE_IMPLICIT;
	if (!r && prohibited())
		r = STREAM_CAPTURE_UNSUPPORTED;
	if (r) {
		drop_op(o);
		return r;
	}
	return submit(default_stream(o->ctx), o);
}

/* is_host reports whether p is host memory. Addresses that the driver does not know are. */
bool is_host(uint64_t p) {
	struct range *r = range_at(p);
	return !r || r->kind == K_HOST;
}

static CUresult copy(uint64_t dst, bool dst_host, uint64_t src, bool src_host, size_t n, bool async, handle stream) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	struct stream *s = NULL;
	if (async && (r = stream_of(stream, &s)))
		return r;
	if (n == 0)
		return OK;
	if (!dst || !src)
		return INVALID_VALUE;
	struct op *o = op_new(OP_COPY, c);
	o->dst = dst, o->dst_host = dst_host, o->src = src, o->src_host = src_host, o->n = n;
	/* The driver has staged a pageable source when it returns, which is before the device has the bytes. */
	bool queued = !async && on_device(dst) && !dst_host && (src_host ? !pinned(src, n) : on_device(src));
	if (!async && !queued)
		return now(o);
	if ((r = check_copy(o))) {
		drop_op(o);
		return r;
	}
	/* Pageable memory: the driver stages a source before it returns, and waits for a copy to a destination. */
	if (src_host && !pinned(src, n) && (queued || !s->capture)) {
		o->snap = malloc(n);
		if (!o->snap) {
			drop_op(o);
			return OUT_OF_MEMORY;
		}
		memcpy(o->snap, (void *)src, n);
	}
	if (queued)
		return later(o);
	bool wait = dst_host && !pinned(dst, n) && !s->capture;
	if (!(r = submit(s, o)) && wait)
		drain(s, s->issued);
	return r ? r : wait ? c->sticky : OK;
}
API(cuMemcpyHtoD_v2, (devptr d, const void *s, size_t n), copy(d, false, (uint64_t)s, true, n, false, 0))
API(cuMemcpyDtoH_v2, (void *d, devptr s, size_t n), copy((uint64_t)d, true, s, false, n, false, 0))
API(cuMemcpyDtoD_v2, (devptr d, devptr s, size_t n), copy(d, false, s, false, n, false, 0))
API(cuMemcpyHtoDAsync_v2, (devptr d, const void *s, size_t n, handle h), copy(d, false, (uint64_t)s, true, n, true, h))
API(cuMemcpyDtoHAsync_v2, (void *d, devptr s, size_t n, handle h), copy((uint64_t)d, true, s, false, n, true, h))
API(cuMemcpyDtoDAsync_v2, (devptr d, devptr s, size_t n, handle h), copy(d, false, s, false, n, true, h))
API(cuMemcpy, (devptr d, devptr s, size_t n), copy(d, is_host(d), s, is_host(s), n, false, 0))
API(cuMemcpyAsync, (devptr d, devptr s, size_t n, handle h), copy(d, is_host(d), s, is_host(s), n, true, h))

static CUresult peer(devptr d, handle dc, devptr s, handle sc, size_t n, bool async, handle stream) {
	if (!obj_get(dc, T_CTX) || !obj_get(sc, T_CTX))
		return INVALID_CONTEXT;
	return copy(d, false, s, false, n, async, stream);
}
API(cuMemcpyPeer, (devptr d, handle dc, devptr s, handle sc, size_t n), peer(d, dc, s, sc, n, false, 0))
API(cuMemcpyPeerAsync, (devptr d, handle dc, devptr s, handle sc, size_t n, handle h), peer(d, dc, s, sc, n, true, h))

static CUresult set2d(devptr d, size_t pitch, uint32_t value, unsigned width, size_t count, size_t rows, bool async, handle stream) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	struct stream *s = NULL;
	if (async && (r = stream_of(stream, &s)))
		return r;
	if (count > SIZE_MAX / width || d % width || (rows > 1 && (pitch < count * width || pitch % width)))
		return INVALID_VALUE;
	if (count == 0 || rows == 0)
		return OK;
	struct op *o = op_new(OP_SET, c);
	o->dst = d, o->value = value, o->width = width, o->n = count * width, o->rows = rows, o->pitch = pitch;
	if (!async)
		return on_device(d) ? later(o) : now(o);
	if ((r = check_device(c, d, (rows - 1) * pitch + o->n, true, false))) {
		drop_op(o);
		return r;
	}
	return submit(s, o);
}
static CUresult set(devptr d, uint32_t value, unsigned width, size_t count, bool async, handle stream) {
	return set2d(d, 0, value, width, count, 1, async, stream);
}
API(cuMemsetD2D8_v2, (devptr d, size_t p, unsigned char v, size_t n, size_t rows), set2d(d, p, v, 1, n, rows, false, 0))
API(cuMemsetD2D16_v2, (devptr d, size_t p, unsigned short v, size_t n, size_t rows), set2d(d, p, v, 2, n, rows, false, 0))
API(cuMemsetD2D32_v2, (devptr d, size_t p, unsigned v, size_t n, size_t rows), set2d(d, p, v, 4, n, rows, false, 0))
API(cuMemsetD2D8Async, (devptr d, size_t p, unsigned char v, size_t n, size_t rows, handle h), set2d(d, p, v, 1, n, rows, true, h))
API(cuMemsetD2D16Async, (devptr d, size_t p, unsigned short v, size_t n, size_t rows, handle h), set2d(d, p, v, 2, n, rows, true, h))
API(cuMemsetD2D32Async, (devptr d, size_t p, unsigned v, size_t n, size_t rows, handle h), set2d(d, p, v, 4, n, rows, true, h))
API(cuMemsetD8_v2, (devptr d, unsigned char v, size_t n), set(d, v, 1, n, false, 0))
API(cuMemsetD16_v2, (devptr d, unsigned short v, size_t n), set(d, v, 2, n, false, 0))
API(cuMemsetD32_v2, (devptr d, unsigned v, size_t n), set(d, v, 4, n, false, 0))
API(cuMemsetD8Async, (devptr d, unsigned char v, size_t n, handle h), set(d, v, 1, n, true, h))
API(cuMemsetD16Async, (devptr d, unsigned short v, size_t n, handle h), set(d, v, 2, n, true, h))
API(cuMemsetD32Async, (devptr d, unsigned v, size_t n, handle h), set(d, v, 4, n, true, h))
