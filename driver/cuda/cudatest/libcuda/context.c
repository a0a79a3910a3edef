/* Contexts: the retained primary context of each device, created contexts, and each thread's stack of contexts. */
#include "fake.h"

#include <stdlib.h>

static __thread struct { handle h[16]; int n; } stack;

struct ctx *ctx_new(int dev, unsigned flags, bool primary) {
	static uint64_t ids;
	struct ctx *c = zalloc(sizeof *c);
	c->dev = dev;
	c->flags = flags;
	c->primary = primary;
	c->id = ++ids;
	c->null_stream = stream_new(c, 0, 0, true);
	c->self = obj_add(c, T_CTX);
	live_add(LIVE_CONTEXTS, 1);
	return c;
}

/* ctx_end removes the context's handle. Like in the driver, the program loses its memory. The struct is kept because queued work
 * and ranges still point to it. */
void ctx_end(struct ctx *c) {
	drain_ctx(c, false);
	c->dead = true;
	obj_del(c->self);
	live_add(LIVE_CONTEXTS, -1);
	stream_close(c->null_stream);
	for (struct stream *t = stream_first(), *next; t; t = next) {
		next = t->next;
		if (t->ctx == c && t->of_thread) {
			t->of_thread = false;
			stream_close(t);
		}
	}
	if (c->marker)
		stream_close(c->marker);
	library_forget(c);
	for (struct range *r = range_first(), *next; r; r = next) {
		next = r->next;
		if (r->ctx == c && (r->kind == K_ALLOC || r->kind == K_IPC || r->kind == K_MANAGED || r->kind == K_GLOBAL))
			range_free(r);
	}
}

struct ctx *current_or_null(void) { return stack.n ? obj_get(stack.h[stack.n - 1], T_CTX) : NULL; }

CUresult current(struct ctx **out) {
	if (!stack.n || !stack.h[stack.n - 1])
		return INVALID_CONTEXT;
	struct ctx *c = current_or_null();
	if (!c)
		return CONTEXT_IS_DESTROYED;
	*out = c;
	return c->sticky;
}

static CUresult retain(handle *out, int dev) {
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (!out)
		return INVALID_VALUE;
	struct device *d = &devices[dev];
	if (!d->primary)
		d->primary = ctx_new(dev, 0, true);
	d->primary_refs++;
	*out = d->primary->self;
	return OK;
}
API(cuDevicePrimaryCtxRetain, (handle *out, int dev), retain(out, dev))

static CUresult release(int dev, bool all) {
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	struct device *d = &devices[dev];
	if (!d->primary)
		return all ? OK : INVALID_CONTEXT;
	d->primary_refs = all ? 0 : d->primary_refs - 1;
	if (d->primary_refs == 0) {
		struct ctx *c = d->primary;
		d->primary = NULL;
		ctx_end(c);
	}
	return OK;
}
/* A reference is released even if the call is made to fail, so a caller that repeats it would release that of other code. */
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(int dev);
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(int dev) {
	CUresult inject = OK, r = enter("cuDevicePrimaryCtxRelease_v2", &inject);
	if (r)
		return r;
	pthread_mutex_lock(&big);
	r = release(dev, false);
	pthread_mutex_unlock(&big);
	return r ? r : inject;
}
API_RELEASE(cuDevicePrimaryCtxReset_v2, (int dev), release(dev, true))

static CUresult state(int dev, unsigned *flags, int *active) {
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (!flags || !active)
		return INVALID_VALUE;
	*active = devices[dev].primary != NULL;
	*flags = *active ? devices[dev].primary->flags : 0;
	return OK;
}
API(cuDevicePrimaryCtxGetState, (int dev, unsigned *flags, int *active), state(dev, flags, active))

static CUresult set_flags(int dev, unsigned flags) {
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (devices[dev].primary)
		devices[dev].primary->flags = flags;
	return OK;
}
API(cuDevicePrimaryCtxSetFlags_v2, (int dev, unsigned flags), set_flags(dev, flags))

static CUresult create(handle *out, unsigned flags, int dev) {
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (!out || stack.n == 16)
		return INVALID_VALUE;
	*out = ctx_new(dev, flags, false)->self;
	stack.h[stack.n++] = *out;
	return OK;
}
API(cuCtxCreate_v2, (handle *out, unsigned flags, int dev), create(out, flags, dev))
#ifndef FAKECUDA_OLD
static CUresult create4(handle *out, void *params, unsigned flags, int dev) {
	return params ? NOT_SUPPORTED : create(out, flags, dev);
}
API(cuCtxCreate_v4, (handle *out, void *params, unsigned flags, int dev), create4(out, params, flags, dev))
#endif

static CUresult destroy(handle h) {
	struct ctx *c = obj_get(h, T_CTX);
	if (!c || c->primary)
		return INVALID_CONTEXT;
	if (stack.n && stack.h[stack.n - 1] == h)
		stack.n--;
	ctx_end(c);
	return OK;
}
API_RELEASE(cuCtxDestroy_v2, (handle h), destroy(h))

static CUresult set_current(handle h) {
	if (h && !obj_get(h, T_CTX))
		return INVALID_CONTEXT;
	if (stack.n == 0)
		stack.n = 1;
	stack.h[stack.n - 1] = h;
	if (!h)
		stack.n--;
	return OK;
}
API(cuCtxSetCurrent, (handle h), set_current(h))

static CUresult get_current(handle *out) {
	if (!out)
		return INVALID_VALUE;
	struct ctx *c = current_or_null();
	*out = c ? c->self : 0;
	return OK;
}
API(cuCtxGetCurrent, (handle *out), get_current(out))

static CUresult push(handle h) {
	if (!obj_get(h, T_CTX))
		return INVALID_CONTEXT;
	if (stack.n == 16)
		return INVALID_VALUE;
	stack.h[stack.n++] = h;
	return OK;
}
API(cuCtxPushCurrent_v2, (handle h), push(h))

static CUresult pop(handle *out) {
	if (!stack.n)
		return INVALID_CONTEXT;
	stack.n--;
	if (out)
		*out = stack.h[stack.n];
	return OK;
}

/* Only the thread's stack changes, so the call needs no lock. A forced failure is reported after the release: callers restore the stack once. */
EXPORT CUresult cuCtxPopCurrent_v2(handle *out);
EXPORT CUresult cuCtxPopCurrent_v2(handle *out) {
	CUresult inject = OK, r = enter("cuCtxPopCurrent_v2", &inject);
	if (!r)
		r = pop(out);
	return r ? r : inject;
}

static CUresult get_device(int *dev) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	return dev ? (*dev = c->dev, OK) : INVALID_VALUE;
}
API(cuCtxGetDevice, (int *dev), get_device(dev))

static CUresult get_flags(unsigned *flags) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	return flags ? (*flags = c->flags, OK) : INVALID_VALUE;
}
API(cuCtxGetFlags, (unsigned *flags), get_flags(flags))

static CUresult get_id(handle h, uint64_t *id) {
	struct ctx *c = h ? obj_get(h, T_CTX) : current_or_null();
	if (!c)
		return INVALID_CONTEXT;
	return id ? (*id = c->id, OK) : INVALID_VALUE;
}
API(cuCtxGetId, (handle h, uint64_t *id), get_id(h, id))

static CUresult api_version(handle h, unsigned *v) {
	struct ctx *c = h ? obj_get(h, T_CTX) : current_or_null();
	if (!c)
		return INVALID_CONTEXT;
	return v ? (*v = 3020, OK) : INVALID_VALUE;
}
API(cuCtxGetApiVersion, (handle h, unsigned *v), api_version(h, v))

static CUresult synchronize(void) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (ctx_captures(c) || prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	drain_ctx(c, false);
	return c->sticky;
}
API(cuCtxSynchronize, (void), synchronize())

static CUresult priorities(int *least, int *greatest) {
	struct ctx *c;
	CUresult r = current(&c);
	if (r)
		return r;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return OK;
}
API(cuCtxGetStreamPriorityRange, (int *least, int *greatest), priorities(least, greatest))

static CUresult enable_peer(handle h, unsigned flags) {
	struct ctx *c, *peer = obj_get(h, T_CTX);
	CUresult r = current(&c);
	if (r)
		return r;
	if (!peer || peer == c)
		return INVALID_CONTEXT;
	if (flags)
		return INVALID_VALUE;
	if (peer->dev == c->dev || lacks("p2p"))
		return PEER_ACCESS_UNSUPPORTED;
	if (c->peer[peer->dev])
		return PEER_ACCESS_ALREADY_ENABLED;
	c->peer[peer->dev] = true;
	return OK;
}
API(cuCtxEnablePeerAccess, (handle h, unsigned flags), enable_peer(h, flags))

static CUresult disable_peer(handle h) {
	struct ctx *c, *peer = obj_get(h, T_CTX);
	CUresult r = current(&c);
	if (r)
		return r;
	if (!peer)
		return INVALID_CONTEXT;
	if (!c->peer[peer->dev])
		return PEER_ACCESS_NOT_ENABLED;
	c->peer[peer->dev] = false;
	return OK;
}
API_RELEASE(cuCtxDisablePeerAccess, (handle h), disable_peer(h))
