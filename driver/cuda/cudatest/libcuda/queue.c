/* Queued work: a queue and a thread for each stream. Work starts when a caller waits for it, or after its delay. */
#define _GNU_SOURCE
#include "fake.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct stream *streams;
static uint64_t stream_ids;

struct stream *stream_first(void) { return streams; }

struct op *op_new(enum op_kind k, struct ctx *c) {
	struct op *o = zalloc(sizeof *o);
	o->kind = k;
	o->ctx = c;
	return o;
}

void drop_op(struct op *o) {
	for (int i = 0; i < o->ndeps; i++)
		stream_put(o->deps[i].s);
	if (o->ev)
		event_put(o->ev);
	if (o->node)
		obj_del(o->node);
	free(o->deps);
	free(o->snap);
	free(o->args);
	free(o->box);
	free(o->preds);
	for (int i = 0; i < o->nchild; i++)
		graph_free(o->child[i]);
	free(o);
}

struct op *op_clone(const struct op *o) {
	struct op *n = zalloc(sizeof *n);
	*n = *o;
	n->next = NULL;
	n->deps = NULL;
	n->ndeps = 0;
	n->node = 0;
	n->owner = NULL;
	n->preds = NULL;
	n->npreds = 0;
	n->nchild = 0; /* the caller copies them */
	if (n->ev)
		n->ev->refs++;
	if (o->args) {
		n->args = zalloc(o->f->args_size);
		memcpy(n->args, o->args, o->f->args_size);
	}
	if (o->box) {
		n->box = zalloc((size_t)o->nboxes * sizeof *o->box);
		memcpy(n->box, o->box, (size_t)o->nboxes * sizeof *o->box);
	}
	return n;
}

static bool overlap(uint64_t a, size_t an, uint64_t b, size_t bn) { return a < b + bn && b < a + an; }

/* uses reports whether the work reads or writes [p, p+n). */
static bool uses(const struct op *o, devptr p, size_t n) {
	switch (o->kind) {
	case OP_COPY: return overlap(o->dst, o->n, p, n) || (!o->snap && overlap(o->src, o->n, p, n));
	case OP_BOX: return boxes_use(o, p, n);
	case OP_SET: case OP_PREFETCH: return overlap(o->dst, o->n, p, n);
	case OP_WRITE_VALUE: case OP_WAIT_VALUE: return overlap(o->dst, o->bytes, p, n);
	case OP_LAUNCH:
		for (int i = 0; i < o->f->nparams; i++) { /* also an argument that points into the range */
			devptr at;
			if (o->f->params[i].type != 'p')
				continue;
			memcpy(&at, o->args + o->f->params[i].off, sizeof at);
			if (at >= p && at - p < n)
				return true;
		}
		return false;
	default: return false;
	}
}

/* fault_users makes queued work that uses [p, p+n) end with a fault, and reports whether there is any. */
bool fault_users(devptr p, size_t n) {
	bool found = false;
	for (struct stream *s = streams; s; s = s->next)
		for (struct op *o = s->head; o; o = o->next)
			if (uses(o, p, n))
				found = o->fault = true;
	return found;
}

/* fault_exec makes queued work of an instantiated graph end with a fault. */
void fault_exec(handle exec) {
	for (struct stream *s = streams; s; s = s->next)
		for (struct op *o = s->head; o; o = o->next)
			if (o->exec == exec)
				o->fault = true;
}

static void until(uint64_t ns) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	uint64_t abs = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + ns;
	t.tv_sec = (time_t)(abs / 1000000000u);
	t.tv_nsec = (long)(abs % 1000000000u);
	pthread_cond_timedwait(&changed, &big, &t);
}

static bool value_holds(struct op *o, bool *fault) {
	struct range *r = range_at(o->dst);
	if (!(*fault = !r || o->dst + o->bytes > r->base + r->size)) {
		uint64_t v = 0;
		memcpy(&v, bytes_of(r, o->dst), o->bytes);
		switch (o->cond & 3) {
		case 0: return o->bytes == 4 ? (int32_t)(v - o->value64) >= 0 : (int64_t)(v - o->value64) >= 0;
		case 1: return v == o->value64;
		case 2: return (v & o->value64) != 0;
		case 3: return (~(v | o->value64) & (o->bytes == 4 ? 0xffffffffu : ~0ull)) != 0;
		}
	}
	return false;
}

static CUresult write_value(struct op *o) {
	struct range *r = range_at(o->dst);
	if (!r || o->dst + o->bytes > r->base + r->size)
		return ILLEGAL_ADDRESS;
	memcpy(bytes_of(r, o->dst), &o->value64, o->bytes);
	return OK;
}

CUresult run_op(struct op *o) {
	bool fault = o->fault;
	struct range *r;
	if (fault)
		return ILLEGAL_ADDRESS;
	switch (o->kind) {
	case OP_COPY: return do_copy(o);
	case OP_BOX: return run_boxes(o);
	case OP_PREFETCH: return run_prefetch(o);
	case OP_SET: return do_set(o);
	case OP_LAUNCH: return run_kernel(o);
	case OP_WRITE_VALUE: return write_value(o);
	case OP_RECORD:
		o->ev->st->ns = now_ns();
		if (o->ev->st->done < o->seq)
			o->ev->st->done = o->seq;
		return OK;
	case OP_WAIT:
		while (o->ev->st->done < o->seq) {
			event_kick(o->ev);
			until(200000);
		}
		return OK;
	case OP_WAIT_VALUE:
		while (!value_holds(o, &fault) && !fault && !o->fault && !o->ctx->sticky)
			until(200000);
		return fault ? ILLEGAL_ADDRESS : OK;
	case OP_FREE:
		if ((r = range_at(o->dst)))
			range_free(r);
		return OK;
	case OP_HOST:
		pthread_mutex_unlock(&big);
		in_callback = true;
		o->fn(o->data);
		in_callback = false;
		pthread_mutex_lock(&big);
		return OK;
	case OP_NOP: return OK;
	case OP_COND: return run_condition(o);
	case OP_RESET: run_reset(o); return OK;
	case OP_CHILD: return UNKNOWN; /* flattened when the graph is instantiated */
	}
	return UNKNOWN;
}

/* ready waits for the dependencies of the first operation. */
static void ready(struct stream *s, struct op *o) {
	while (!s->kicked && !s->stop && now_ns() < o->due)
		until(o->due - now_ns() + 1000);
	for (int i = 0; i < o->ndeps; i++)
		drain(o->deps[i].s, o->deps[i].ticket);
}

static void *work(void *arg) {
	struct stream *s = arg;
	pthread_mutex_lock(&big);
	for (;;) {
		while (!s->head && !s->stop)
			pthread_cond_wait(&changed, &big);
		struct op *o = s->head;
		if (!o)
			break;
		ready(s, o);
		/* After a fault no work is executed, but events complete and memory is freed. */
		bool skip = o->ctx->sticky && o->kind != OP_RECORD && o->kind != OP_FREE;
		CUresult r = skip ? OK : run_op(o);
		if (!r && !skip && o->fault) /* released while it ran */
			r = ILLEGAL_ADDRESS;
		if (r && !o->ctx->sticky)
			o->ctx->sticky = r;
		s->head = o->next;
		if (!s->head)
			s->tail = NULL, s->kicked = false;
		s->done = o->ticket;
		drop_op(o);
		pthread_cond_broadcast(&changed);
	}
	stream_put(s);
	pthread_mutex_unlock(&big);
	return NULL;
}

struct stream *stream_new(struct ctx *c, unsigned flags, int priority, bool null) {
	struct stream *s = zalloc(sizeof *s);
	*s = (struct stream){.refs = 1, .ctx = c, .flags = flags, .priority = priority, .null = null, .id = ++stream_ids};
	s->next = streams;
	streams = s;
	if (!null) {
		s->self = obj_add(s, T_STREAM);
		live_add(LIVE_STREAMS, 1);
	}
	return s;
}

void stream_put(struct stream *s) {
	if (--s->refs)
		return;
	for (struct stream **p = &streams; *p; p = &(*p)->next)
		if (*p == s) {
			*p = s->next;
			break;
		}
	free(s->last);
	free(s);
}

/* stream_close executes the queued work and removes the handle. */
void stream_close(struct stream *s) {
	if (s->self) {
		obj_del(s->self);
		live_add(LIVE_STREAMS, -1);
	}
	s->self = 0;
	s->stop = s->kicked = true;
	pthread_cond_broadcast(&changed);
	stream_put(s);
}

/* start runs the stream's thread, with all signals blocked, so that the program's threads handle them. */
static CUresult start(struct stream *s) {
	if (s->started)
		return OK;
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	s->refs++;
	int e = pthread_create(&s->thread, NULL, work, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (e) {
		s->refs--;
		return OUT_OF_MEMORY;
	}
	pthread_detach(s->thread);
	s->started = true;
	return OK;
}

static void depend(struct op *o, struct stream *s) {
	if (s->issued == s->done)
		return;
	o->deps = realloc(o->deps, (size_t)(o->ndeps + 1) * sizeof *o->deps);
	if (!o->deps)
		abort();
	s->refs++;
	o->deps[o->ndeps++] = (struct dep){s, s->issued};
}

/* legacy orders the default stream with all streams except non-blocking ones. */
static void legacy(struct stream *s, struct op *o) {
	if (!s->null) {
		if (!(s->flags & 1))
			depend(o, s->ctx->null_stream);
		return;
	}
	for (struct stream *t = streams; t; t = t->next)
		if (t != s && t->ctx == s->ctx && !(t->flags & 1) && !t->capture)
			depend(o, t);
}

/* everything orders the work after all work of the context. */
static void everything(struct stream *s, struct op *o) {
	for (struct stream *t = streams; t; t = t->next)
		if (t != s && t->ctx == s->ctx)
			depend(o, t);
}

CUresult submit(struct stream *s, struct op *o) {
	if (s->capture) {
		if (s->invalid) {
			drop_op(o);
			return STREAM_CAPTURE_INVALIDATED;
		}
		s->unjoined = !s->origin;
		graph_append(s->capture, o, s->last, s->nlast);
		list_set(&s->last, &s->nlast, &o, 1);
		return OK;
	}
	CUresult r = s->null && legacy_captured(s->ctx, true) ? STREAM_CAPTURE_IMPLICIT : start(s);
	if (r) {
		drop_op(o);
		return r;
	}
	static long delay = -1;
	if (delay < 0) {
		const char *env = env_get("FAKECUDA_DELAY_US");
		delay = env ? atol(env) : 2000;
	}
	if (s == s->ctx->marker)
		everything(s, o);
	else
		legacy(s, o);
	if (o->kind == OP_RECORD && !o->seq) /* of a graph */
		o->seq = ++o->ev->st->recorded;
	if (o->kind == OP_WAIT && !o->seq)
		o->seq = o->ev->st->recorded;
	o->ticket = ++s->issued;
	o->due = now_ns() + (uint64_t)delay * 1000;
	if (s->tail)
		s->tail->next = o;
	else
		s->head = o;
	s->tail = o;
	pthread_cond_broadcast(&changed);
	return OK;
}

void drain(struct stream *s, uint64_t ticket) {
	s->refs++;
	while (s->done < ticket) {
		if (!s->kicked) {
			s->kicked = true;
			pthread_cond_broadcast(&changed);
		}
		pthread_cond_wait(&changed, &big);
	}
	stream_put(s);
}

void drain_ctx(struct ctx *c, bool blocking_only) {
again:
	for (struct stream *s = streams; s; s = s->next)
		if (s->ctx == c && s->done < s->issued && !(blocking_only && s->flags & 1)) {
			drain(s, s->issued);
			goto again; /* the list may have changed */
		}
}
