/* Events: recording increments a number, and the stream's thread completes it. Events between processes are in shared memory. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static const char event_magic[8] = "FKEVENT";

void event_put(struct event *e) {
	if (--e->refs)
		return;
	if (e->st != &e->own)
		munmap(e->st, 4096);
	if (e->fd >= 0)
		close(e->fd);
	if (e->last)
		stream_put(e->last);
	free(e->captured);
	free(e);
}

static struct event *event_new(struct ctx *c, unsigned flags) {
	struct event *e = zalloc(sizeof *e);
	e->refs = 1;
	e->ctx = c;
	e->flags = flags;
	e->fd = -1;
	e->st = &e->own;
	return e;
}

static bool share(struct event *e, int fd) {
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return false;
	e->fd = fd;
	e->st = p;
	return true;
}

static handle publish(struct event *e) {
	live_add(LIVE_EVENTS, 1);
	return e->self = obj_add(e, T_EVENT);
}

static CUresult create(handle *out, unsigned flags) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	/* An event between processes cannot measure time. */
	if (!out || flags & ~7u || (flags & 4 && !(flags & 2)))
		return INVALID_VALUE;
	struct event *e = event_new(c, flags);
	if (flags & 4) {
		char name[64];
		e->nonce = random64();
		snprintf(name, sizeof name, "fakecuda:%016llx:event", (unsigned long long)e->nonce);
		int fd = memfd_create(name, MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, 4096) || !share(e, fd)) {
			if (fd >= 0)
				close(fd);
			e->fd = -1;
			event_put(e);
			return OUT_OF_MEMORY;
		}
	}
	*out = publish(e);
	return OK;
}
API(cuEventCreate, (handle *out, unsigned flags), create(out, flags))

static CUresult destroy(handle h) {
	struct event *e = obj_get(h, T_EVENT);
	if (!e)
		return INVALID_HANDLE;
	obj_del(h);
	live_add(LIVE_EVENTS, -1);
	event_put(e);
	return OK;
}
API_RELEASE(cuEventDestroy_v2, (handle h), destroy(h))

CUresult event_record(struct event *e, struct stream *s) {
	e->capture = s->capture;
	e->captured_in = s->capture ? s : NULL;
	if (s->capture) {
		list_set(&e->captured, &e->ncaptured, s->last, s->nlast);
		return OK;
	}
	struct op *o = op_new(OP_RECORD, s->ctx);
	o->ev = e;
	e->refs++;
	o->seq = ++e->st->recorded;
	CUresult r = submit(s, o);
	if (r) {
		e->st->recorded--;
		return r;
	}
	s->refs++;
	if (e->last)
		stream_put(e->last);
	e->last = s;
	e->last_ticket = s->issued;
	return OK;
}

/* node adds a node that records or waits for the event at each launch of the graph. */
static CUresult node(enum op_kind k, struct event *e, struct stream *s) {
	struct op *o = op_new(k, s->ctx);
	o->ev = e;
	e->refs++;
	return submit(s, o);
}

static CUresult record(handle h, handle sh, unsigned flags) {
	struct event *e = obj_get(h, T_EVENT);
	struct stream *s;
	if (!e)
		return INVALID_HANDLE;
	CUresult r = stream_of(sh, &s);
	if (r)
		return r;
	if (e->ctx != s->ctx)
		return INVALID_HANDLE;
	return flags && s->capture ? node(OP_RECORD, e, s) : event_record(e, s);
}
API(cuEventRecord, (handle h, handle s), record(h, s, 0))
API(cuEventRecordWithFlags, (handle h, handle s, unsigned flags), flags > 1 ? INVALID_VALUE : record(h, s, flags))

static CUresult record_ctx(handle ch, handle h) {
	struct ctx *c = obj_get(ch, T_CTX);
	struct event *e = obj_get(h, T_EVENT);
	if (!c)
		return INVALID_CONTEXT;
	if (!e || e->ctx != c)
		return INVALID_HANDLE;
	if (c->sticky)
		return c->sticky;
	if (ctx_captures(c))
		return STREAM_CAPTURE_UNSUPPORTED;
	if (!c->marker)
		c->marker = stream_new(c, 1, 0, true);
	return event_record(e, c->marker);
}
API(cuCtxRecordEvent, (handle c, handle h), record_ctx(c, h))

/* event_kick wakes the stream that will complete the event. */
void event_kick(struct event *e) {
	if (e->last && e->last->done < e->last_ticket && !e->last->kicked) {
		e->last->kicked = true;
		pthread_cond_broadcast(&changed);
	}
}

static bool complete(struct event *e) { return e->st->done >= e->st->recorded; }

static CUresult query(handle h) {
	struct event *e = obj_get(h, T_EVENT);
	if (!e)
		return INVALID_HANDLE;
	if (e->capture)
		return CAPTURED_EVENT;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	if (complete(e))
		return e->ctx->sticky;
	event_kick(e);
	return NOT_READY;
}
API(cuEventQuery, (handle h), query(h))

static CUresult synchronize(handle h) {
	struct event *e = obj_get(h, T_EVENT);
	if (!e)
		return INVALID_HANDLE;
	if (e->capture)
		return CAPTURED_EVENT;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	uint64_t seq = e->st->recorded;
	struct op o = {.kind = OP_WAIT, .ev = e, .seq = seq};
	e->refs++;
	run_op(&o);
	CUresult r = e->ctx->sticky;
	event_put(e);
	return r;
}
API(cuEventSynchronize, (handle h), synchronize(h))

/* going_on reports whether a capture has not ended. */
static bool going_on(struct graph *capture) {
	for (struct stream *s = stream_first(); s; s = s->next)
		if (s->capture == capture)
			return true;
	return false;
}

static CUresult wait(handle sh, handle h, unsigned flags) {
	struct event *e = obj_get(h, T_EVENT);
	struct stream *s;
	if (!e)
		return INVALID_HANDLE;
	CUresult r = stream_of(sh, &s);
	if (r)
		return r;
	if (flags > 1)
		return INVALID_VALUE;
	if (flags && s->capture)
		return node(OP_WAIT, e, s);
	if (e->capture && !going_on(e->capture))
		return CAPTURED_EVENT;
	if (e->capture) { /* the stream joins the capture, or the event's stream does */
		if (s->capture && s->capture != e->capture)
			return STREAM_CAPTURE_INVALIDATED;
		if (!s->capture) {
			s->capture = e->capture;
			s->origin = s->invalid = false;
			s->unjoined = true;
			s->nlast = 0;
		} else if (e->captured_in) {
			e->captured_in->unjoined = false;
		}
		for (int i = 0; i < e->ncaptured; i++)
			list_add(&s->last, &s->nlast, e->captured[i]);
		return OK;
	}
	if (complete(e) && !s->capture)
		return OK;
	struct op *o = op_new(OP_WAIT, s->ctx);
	o->ev = e;
	e->refs++;
	o->seq = e->st->recorded;
	return submit(s, o);
}
API(cuStreamWaitEvent, (handle s, handle h, unsigned flags), wait(s, h, flags))

static CUresult elapsed(float *ms, handle a, handle b) {
	struct event *x = obj_get(a, T_EVENT), *y = obj_get(b, T_EVENT);
	if (!x || !y || (x->flags | y->flags) & 2 || !x->st->recorded || !y->st->recorded)
		return INVALID_HANDLE;
	if (!ms)
		return INVALID_VALUE;
	if (!complete(x) || !complete(y))
		return NOT_READY;
	*ms = (float)((double)(int64_t)(y->st->ns - x->st->ns) / 1e6);
	return OK;
}
API(cuEventElapsedTime, (float *ms, handle a, handle b), elapsed(ms, a, b))
#ifndef FAKECUDA_OLD
API(cuEventElapsedTime_v2, (float *ms, handle a, handle b), elapsed(ms, a, b))
#endif

static CUresult export(struct record *out, handle h) {
	struct event *e = obj_get(h, T_EVENT);
	if (!e)
		return INVALID_HANDLE;
	if (!out || e->fd < 0 || e->foreign)
		return INVALID_VALUE;
	record_fill(out, event_magic, e->fd, e->nonce, 4096, devices[e->ctx->dev].uuid);
	return OK;
}
API(cuIpcGetEventHandle, (struct record *out, handle h), export(out, h))

static CUresult import(handle *out, const struct record *rec) {
	struct ctx *c;
	int fd;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!out)
		return INVALID_VALUE;
	if ((r = record_open(rec, event_magic, &fd)))
		return r;
	struct event *e = event_new(c, 6);
	e->foreign = true;
	if (!share(e, fd)) {
		close(fd);
		event_put(e);
		return OUT_OF_MEMORY;
	}
	*out = publish(e);
	return OK;
}
API(cuIpcOpenEventHandle, (handle *out, struct record rec), import(out, &rec))
