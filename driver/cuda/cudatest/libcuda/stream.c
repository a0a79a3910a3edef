/* Streams and captures of their work. */
#include "fake.h"

#include <stdlib.h>

enum { GLOBAL, THREAD_LOCAL, RELAXED };

static uint64_t capture_ids;
static __thread int capture_mode; /* GLOBAL unless the thread has exchanged it */

/* invalidate makes a capture end with an error. */
void invalidate(struct graph *capture) {
	for (struct stream *s = stream_first(); s; s = s->next)
		if (s->capture == capture)
			s->invalid = true;
}

/* prohibited reports whether a capture forbids the thread to make calls that may wait for the device, and invalidates that capture. */
bool prohibited(void) {
	bool found = false;
	for (struct stream *s = stream_first(); s && capture_mode != RELAXED; s = s->next) {
		if (!s->capture || !s->origin || s->mode == RELAXED)
			continue;
		if (pthread_equal(s->capture_thread, pthread_self()) || (s->mode == GLOBAL && capture_mode == GLOBAL)) {
			invalidate(s->capture);
			found = true;
		}
	}
	return found;
}

/* ctx_captures reports whether a stream of the context captures, and invalidates that capture. */
bool ctx_captures(struct ctx *c) {
	bool found = false;
	for (struct stream *s = stream_first(); s; s = s->next)
		if (s->ctx == c && s->capture) {
			invalidate(s->capture);
			found = true;
		}
	return found;
}

/* legacy_captured reports whether a stream captures that the default stream synchronises with. If spoil, that capture is invalid. */
bool legacy_captured(struct ctx *c, bool spoil) {
	bool found = false;
	for (struct stream *s = stream_first(); s; s = s->next)
		if (s->ctx == c && s->capture && !(s->flags & 1)) {
			if (spoil)
				invalidate(s->capture);
			found = true;
		}
	return found;
}

static CUresult exchange_mode(int *mode) {
	if (!mode || *mode < GLOBAL || *mode > RELAXED)
		return INVALID_VALUE;
	int old = capture_mode;
	capture_mode = *mode;
	*mode = old;
	return OK;
}
API(cuThreadExchangeStreamCaptureMode, (int *mode), exchange_mode(mode))

__thread bool per_thread_default; /* handle 0 is the thread's default stream, during a call of a _ptsz or _ptds symbol */

/* The default streams of this thread, one for each context in which it was used. */
static __thread struct { struct ctx *c; uint64_t id; struct stream *s; } mine[16];

/* thread_stream returns the thread's default stream, which synchronises with the legacy one. It lives as long as its context. */
static struct stream *thread_stream(struct ctx *c) {
	int slot = -1;
	for (int i = 0; i < 16; i++) {
		if (mine[i].c == c && mine[i].id == c->id)
			return mine[i].s;
		if (slot < 0 && (!mine[i].c || mine[i].c->dead))
			slot = i;
	}
	if (slot < 0)
		return c->null_stream;
	mine[slot].c = c;
	mine[slot].id = c->id;
	struct stream *s = mine[slot].s = stream_new(c, 0, 0, true);
	s->null = false;
	s->of_thread = true;
	return s;
}

struct stream *default_stream(struct ctx *c) { return per_thread_default ? thread_stream(c) : c->null_stream; }

CUresult stream_of(handle h, struct stream **out) {
	struct ctx *c;
	CUresult r = current(&c);
	if (h == 0 || h == 1 || h == 2) {
		if (r == OK)
			*out = h == 0 ? default_stream(c) : h == 1 ? c->null_stream : thread_stream(c);
		return r;
	}
	struct stream *s = obj_get(h, T_STREAM);
	if (!s)
		return INVALID_HANDLE;
	if (r && r != s->ctx->sticky)
		return r;
	*out = s;
	return s->ctx->sticky;
}

static CUresult create(handle *out, unsigned flags, int priority) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!out || flags > 1)
		return INVALID_VALUE;
	*out = stream_new(c, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority, false)->self;
	return OK;
}
API(cuStreamCreate, (handle *out, unsigned flags), create(out, flags, 0))
API(cuStreamCreateWithPriority, (handle *out, unsigned flags, int priority), create(out, flags, priority))

static CUresult destroy(handle h) {
	struct stream *s = obj_get(h, T_STREAM);
	if (!s)
		return INVALID_HANDLE;
	if (s->capture && s->origin) {
		if (!s->into)
			graph_free(s->capture);
		for (struct stream *t = stream_first(); t; t = t->next)
			if (t != s && t->capture == s->capture)
				t->capture = NULL;
		s->capture = NULL;
	}
	stream_close(s);
	return OK;
}
API_RELEASE(cuStreamDestroy_v2, (handle h), destroy(h))

/* unavailable returns the error of waiting for, or querying, a stream during a capture. */
static CUresult unavailable(struct stream *s) {
	if (s->capture) {
		invalidate(s->capture);
		return STREAM_CAPTURE_UNSUPPORTED;
	}
	if (s->null && legacy_captured(s->ctx, true))
		return STREAM_CAPTURE_IMPLICIT;
	return prohibited() ? STREAM_CAPTURE_UNSUPPORTED : OK;
}

static CUresult synchronize(handle h) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	struct ctx *c = s->ctx;
	if ((r = unavailable(s)))
		return r;
	if (s->null)
		drain_ctx(c, true);
	else
		drain(s, s->issued);
	return c->sticky;
}
API(cuStreamSynchronize, (handle h), synchronize(h))

static CUresult query(handle h) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if ((r = unavailable(s)))
		return r;
	if (s->done == s->issued)
		return OK;
	s->kicked = true; /* polling must make progress, like on a device */
	pthread_cond_broadcast(&changed);
	return NOT_READY;
}
API(cuStreamQuery, (handle h), query(h))

enum field { F_FLAGS, F_PRIORITY, F_ID, F_CTX, F_DEVICE };
static CUresult get(handle h, enum field f, void *out) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (!out)
		return INVALID_VALUE;
	switch (f) {
	case F_FLAGS: *(unsigned *)out = s->flags; break;
	case F_PRIORITY: *(int *)out = s->priority; break;
	case F_ID: *(uint64_t *)out = s->id; break;
	case F_CTX: *(handle *)out = s->ctx->self; break;
	case F_DEVICE: *(int *)out = s->ctx->dev; break;
	}
	return OK;
}
API(cuStreamGetFlags, (handle h, unsigned *out), get(h, F_FLAGS, out))
API(cuStreamGetPriority, (handle h, int *out), get(h, F_PRIORITY, out))
API(cuStreamGetId, (handle h, uint64_t *out), get(h, F_ID, out))
API(cuStreamGetCtx, (handle h, handle *out), get(h, F_CTX, out))
#ifndef FAKECUDA_OLD
API(cuStreamGetDevice, (handle h, int *out), get(h, F_DEVICE, out))
#endif

static CUresult host_func(handle h, void (*fn)(void *), void *data) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (!fn)
		return INVALID_VALUE;
	struct op *o = op_new(OP_HOST, s->ctx);
	o->fn = fn;
	o->data = data;
	return submit(s, o);
}
API(cuLaunchHostFunc, (handle h, void (*fn)(void *), void *data), host_func(h, fn, data))

/* value_op makes a write of, or a wait for, a value. Bit 30 of a wait's flags flushes remote writes, which no device supports. */
static CUresult value_op(struct op **out, struct stream *s, devptr p, uint64_t v, unsigned flags, enum op_kind k, unsigned bytes) {
	if (k == OP_WAIT_VALUE ? flags & ~(3u | 1u << 30) : flags & ~1u)
		return INVALID_VALUE;
	if (k == OP_WAIT_VALUE && flags & 1u << 30)
		return NOT_SUPPORTED;
	if (p % bytes || check_device(s->ctx, p, bytes, k == OP_WRITE_VALUE, false))
		return INVALID_VALUE;
	struct op *o = *out = op_new(k, s->ctx);
	o->dst = p, o->value64 = bytes == 4 ? (uint32_t)v : v, o->cond = flags, o->bytes = bytes;
	return OK;
}

static CUresult value(handle h, devptr p, uint64_t v, unsigned flags, enum op_kind k, unsigned bytes) {
	struct stream *s;
	struct op *o;
	CUresult r = stream_of(h, &s);
	if (r || (r = value_op(&o, s, p, v, flags, k, bytes)))
		return r;
	return submit(s, o);
}

/* mem_op is CUstreamBatchMemOpParams. */
struct mem_op { uint32_t op, pad; devptr at; uint64_t value; uint32_t flags, pad2; devptr alias; uint64_t rest; };

/* batch queues waits, writes and barriers. It checks all of them before it queues one. */
static CUresult batch(handle h, unsigned n, const struct mem_op *ops, unsigned flags) {
	struct stream *s;
	struct op *made[256];
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (!n || n > 256 || !ops || flags)
		return INVALID_VALUE;
	unsigned i = 0;
	for (; i < n && !r; i++) {
		const struct mem_op *o = &ops[i];
		switch (o->op) {
		case 1: case 2: case 4: case 5:
			r = value_op(&made[i], s, o->at, o->value, o->flags, o->op == 1 || o->op == 4 ? OP_WAIT_VALUE : OP_WRITE_VALUE, o->op < 4 ? 4 : 8);
			break;
		case 3: r = NOT_SUPPORTED; break; /* no device flushes remote writes */
		case 6: made[i] = op_new(OP_NOP, s->ctx); break; /* a barrier: operations are executed in order here */
		default: r = INVALID_VALUE;
		}
	}
	if (r) {
		for (unsigned k = 0; k + 1 < i; k++)
			drop_op(made[k]);
		return r;
	}
	for (i = 0; i < n; i++) {
		CUresult e = submit(s, made[i]);
		r = r ? r : e;
	}
	return r;
}
API(cuStreamBatchMemOp_v2, (handle h, unsigned n, const struct mem_op *ops, unsigned flags), batch(h, n, ops, flags))
API(cuStreamWriteValue32_v2, (handle h, devptr p, uint32_t v, unsigned f), value(h, p, v, f, OP_WRITE_VALUE, 4))
API(cuStreamWriteValue64_v2, (handle h, devptr p, uint64_t v, unsigned f), value(h, p, v, f, OP_WRITE_VALUE, 8))
API(cuStreamWaitValue32_v2, (handle h, devptr p, uint32_t v, unsigned f), value(h, p, v, f, OP_WAIT_VALUE, 4))
API(cuStreamWaitValue64_v2, (handle h, devptr p, uint64_t v, unsigned f), value(h, p, v, f, OP_WAIT_VALUE, 8))

static CUresult begin(handle h, int mode, struct graph *into) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (mode < 0 || mode > 2)
		return INVALID_VALUE;
	if (s->null || s->capture) /* the legacy stream cannot capture, a thread's default stream can */
		return STREAM_CAPTURE_UNSUPPORTED;
	s->capture = into ? into : graph_new();
	s->nlast = 0;
	s->origin = true;
	s->invalid = s->unjoined = false;
	s->mode = mode;
	s->capture_id = ++capture_ids;
	s->capture_thread = pthread_self();
	return OK;
}
API(cuStreamBeginCapture_v2, (handle h, int mode), begin(h, mode, NULL))

/* begin_into captures into an existing graph, after the given nodes. */
static CUresult begin_into(handle h, handle gh, const handle *deps, size_t n, int mode) {
	struct graph *g = obj_get(gh, T_GRAPH);
	if (!g || (n && !deps))
		return INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		struct op *o = obj_get(deps[i], T_NODE);
		if (!o || o->owner != g)
			return INVALID_VALUE;
	}
	CUresult r = begin(h, mode, g);
	struct stream *s = r ? NULL : obj_get(h, T_STREAM);
	for (size_t i = 0; s && i < n; i++)
		list_add(&s->last, &s->nlast, obj_get(deps[i], T_NODE));
	if (s)
		s->into = true;
	return r;
}
API(cuStreamBeginCaptureToGraph, (handle h, handle g, const handle *deps, const void *edges, size_t n, int mode),
	!plain_edges(edges, n) ? NOT_SUPPORTED : begin_into(h, g, deps, n, mode))

static CUresult end(handle h, handle *out) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (!out)
		return INVALID_VALUE;
	if (!s->capture)
		return ILLEGAL_STATE;
	if (!s->origin)
		return STREAM_CAPTURE_UNMATCHED;
	if (s->mode != RELAXED && !pthread_equal(s->capture_thread, pthread_self()))
		return STREAM_CAPTURE_WRONG_THREAD;
	struct graph *g = s->capture;
	bool invalid = s->invalid, unjoined = false, into = s->into;
	for (struct stream *t = stream_first(); t; t = t->next)
		if (t->capture == g) {
			unjoined |= t != s && t->unjoined;
			t->capture = NULL;
			t->origin = t->unjoined = t->invalid = t->into = false;
			t->nlast = 0;
		}
	*out = invalid || unjoined ? 0 : g->self;
	if (!*out && !into)
		graph_free(g);
	return invalid ? STREAM_CAPTURE_INVALIDATED : unjoined ? STREAM_CAPTURE_UNJOINED : OK;
}

/* A call that is made to fail also ends the capture, without a graph. */
EXPORT CUresult cuStreamEndCapture(handle h, handle *out);
EXPORT CUresult cuStreamEndCapture(handle h, handle *out) {
	CUresult inject = OK, r = enter("cuStreamEndCapture", &inject);
	if (r)
		return r;
	pthread_mutex_lock(&big);
	r = end(h, out);
	if (r == OK && inject) {
		graph_free(obj_get(*out, T_GRAPH));
		*out = 0;
	}
	pthread_mutex_unlock(&big);
	return r ? r : inject;
}

static CUresult is_capturing(handle h, int *out) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (s->null && legacy_captured(s->ctx, false))
		return STREAM_CAPTURE_IMPLICIT;
	return out ? (*out = !s->capture ? 0 : s->invalid ? 2 : 1, OK) : INVALID_VALUE;
}
API(cuStreamIsCapturing, (handle h, int *out), is_capturing(h, out))

/* capture_info also returns the graph, and the nodes that the next one depends on, in memory that the library keeps until the next
 * call of the thread. */
static CUresult capture_info(handle h, int *status, uint64_t *id, handle *graph, const handle **deps, const void **edges, size_t *n) {
	static __thread handle *list;
	static __thread uint64_t *data; /* all edges are plain */
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (!status)
		return INVALID_VALUE;
	if (s->null && legacy_captured(s->ctx, false))
		return STREAM_CAPTURE_IMPLICIT;
	*status = !s->capture ? 0 : s->invalid ? 2 : 1;
	if (edges)
		*edges = NULL;
	if (*status != 1)
		return OK;
	struct stream *origin = s;
	for (struct stream *t = stream_first(); t; t = t->next)
		if (t->capture == s->capture && t->origin)
			origin = t;
	if (id)
		*id = origin->capture_id;
	if (graph)
		*graph = s->capture->self;
	if (deps) {
		free(list);
		list = zalloc(((size_t)s->nlast + 1) * sizeof *list);
		for (int i = 0; i < s->nlast; i++)
			list[i] = s->last[i]->node;
		*deps = list;
	}
	if (edges) {
		free(data);
		*edges = data = zalloc(((size_t)s->nlast + 1) * sizeof *data);
	}
	if (n)
		*n = (size_t)s->nlast;
	return OK;
}
API(cuStreamGetCaptureInfo_v2, (handle h, int *status, uint64_t *id, handle *g, const handle **deps, size_t *n),
	capture_info(h, status, id, g, deps, NULL, n))
API(cuStreamGetCaptureInfo_v3, (handle h, int *status, uint64_t *id, handle *g, const handle **deps, const void **edges, size_t *n),
	capture_info(h, status, id, g, deps, edges, n))

/* update changes the nodes that the next captured operation depends on: adds them (0) or replaces them (1). */
static CUresult update(handle h, const handle *deps, size_t n, unsigned flags) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (!s->capture)
		return ILLEGAL_STATE;
	if (flags > 1 || (n && !deps))
		return INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		struct op *o = obj_get(deps[i], T_NODE);
		if (!o || o->owner != s->capture)
			return INVALID_VALUE;
	}
	if (flags)
		s->nlast = 0;
	for (size_t i = 0; i < n; i++)
		list_add(&s->last, &s->nlast, obj_get(deps[i], T_NODE));
	return OK;
}
API(cuStreamUpdateCaptureDependencies, (handle h, const handle *deps, size_t n, unsigned flags), update(h, deps, n, flags))
API(cuStreamUpdateCaptureDependencies_v2, (handle h, const handle *deps, const void *edges, size_t n, unsigned flags),
	!plain_edges(edges, n) ? NOT_SUPPORTED : update(h, deps, n, flags))
