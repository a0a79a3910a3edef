/* Streams and captures of their work. */
#include "fake.h"

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

CUresult stream_of(handle h, struct stream **out) {
	struct ctx *c;
	CUresult r = current(&c);
	if (h == 0 || h == 1 || h == 2) {
		if (r == OK)
			*out = c->null_stream;
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

static CUresult value(handle h, devptr p, uint64_t v, unsigned flags, enum op_kind k, unsigned bytes) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (p % bytes || check_device(s->ctx, p, bytes, k == OP_WRITE_VALUE, false))
		return INVALID_VALUE;
	struct op *o = op_new(k, s->ctx);
	o->dst = p, o->value64 = v, o->cond = flags, o->bytes = bytes;
	return submit(s, o);
}
API(cuStreamWriteValue32_v2, (handle h, devptr p, uint32_t v, unsigned f), value(h, p, v, f, OP_WRITE_VALUE, 4))
API(cuStreamWriteValue64_v2, (handle h, devptr p, uint64_t v, unsigned f), value(h, p, v, f, OP_WRITE_VALUE, 8))
API(cuStreamWaitValue32_v2, (handle h, devptr p, uint32_t v, unsigned f), value(h, p, v, f, OP_WAIT_VALUE, 4))
API(cuStreamWaitValue64_v2, (handle h, devptr p, uint64_t v, unsigned f), value(h, p, v, f, OP_WAIT_VALUE, 8))

static CUresult begin(handle h, int mode) {
	struct stream *s;
	CUresult r = stream_of(h, &s);
	if (r)
		return r;
	if (mode < 0 || mode > 2)
		return INVALID_VALUE;
	if (s->null || s->capture)
		return STREAM_CAPTURE_UNSUPPORTED;
	s->capture = graph_new();
	s->origin = true;
	s->invalid = s->unjoined = false;
	s->mode = mode;
	s->capture_id = ++capture_ids;
	s->capture_thread = pthread_self();
	return OK;
}
API(cuStreamBeginCapture_v2, (handle h, int mode), begin(h, mode))

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
	bool invalid = s->invalid, unjoined = false;
	for (struct stream *t = stream_first(); t; t = t->next)
		if (t->capture == g) {
			unjoined |= t != s && t->unjoined;
			t->capture = NULL;
			t->origin = t->unjoined = t->invalid = false;
		}
	*out = invalid || unjoined ? 0 : g->self;
	if (!*out) {
		graph_free(g);
	}
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
