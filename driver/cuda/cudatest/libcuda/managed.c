/* Managed memory: advice for its pages, and moves between places. The bytes do not move; the library records where they would be. */
#include "fake.h"

#include <stdlib.h>

enum { LOC_DEVICE = 1, LOC_HOST = 2, LOC_NUMA = 3, LOC_NUMA_CURRENT = 4, PAGE = 4096, CPU = -1, NOWHERE = -2 };

/* page is the advice for one page, and the place of its last prefetch: a device, CPU or NOWHERE. */
struct page { bool read_mostly; int preferred, last; unsigned accessed_by; bool host_access; };

/* pages returns the pages of [p, p+n), which must be managed memory. */
static struct page *pages(devptr p, size_t n, size_t *count) {
	struct range *r = range_at(p);
	if (!n || !r || r->kind != K_MANAGED || n > r->base + r->size - p)
		return NULL;
	size_t all = round_up(r->size, PAGE) / PAGE;
	if (!r->pages) {
		r->pages = zalloc(all * sizeof *r->pages);
		for (size_t i = 0; i < all; i++)
			r->pages[i].preferred = r->pages[i].last = NOWHERE;
	}
	size_t first = (p - r->base) / PAGE, last = (p - r->base + n - 1) / PAGE;
	*count = last - first + 1;
	return &r->pages[first];
}

/* place converts a location. A device must access managed memory while the host does. */
static CUresult place(const struct location *l, int *out) {
	switch (l->type) {
	case LOC_DEVICE:
		if (l->id < 0 || l->id >= device_count || lacks("concurrent"))
			return INVALID_DEVICE;
		*out = l->id;
		return OK;
	case LOC_HOST: case LOC_NUMA_CURRENT: *out = CPU; return OK;
	case LOC_NUMA: *out = CPU; return l->id == 0 ? OK : INVALID_VALUE; /* the host has one node */
	}
	return INVALID_VALUE;
}

static CUresult advise(devptr p, size_t n, int advice, struct location l) {
	size_t count;
	struct page *g = pages(p, n, &count);
	int at = NOWHERE;
	if (!g || advice < 1 || advice > 6)
		return INVALID_VALUE;
	bool located = advice == 3 || advice == 5 || advice == 6;
	CUresult r = located ? place(&l, &at) : OK;
	for (size_t i = 0; i < count && !r; i++)
		switch (advice) {
		case 1: case 2: g[i].read_mostly = advice == 1; break;
		case 3: g[i].preferred = at; break;
		case 4: g[i].preferred = NOWHERE; break;
		case 5: at == CPU ? (void)(g[i].host_access = true) : (void)(g[i].accessed_by |= 1u << at); break;
		case 6: at == CPU ? (void)(g[i].host_access = false) : (void)(g[i].accessed_by &= ~(1u << at)); break;
		}
	return r;
}
API(cuMemAdvise, (devptr p, size_t n, int advice, int dev),
	advise(p, n, advice, dev == CPU ? (struct location){LOC_HOST, 0} : (struct location){LOC_DEVICE, dev}))
API(cuMemAdvise_v2, (devptr p, size_t n, int advice, struct location l), advise(p, n, advice, l))

static CUresult prefetch(devptr p, size_t n, struct location l, unsigned flags, handle sh) {
	struct stream *s;
	size_t count;
	int at;
	CUresult r = stream_of(sh, &s);
	if (r)
		return r;
	if (flags || !pages(p, n, &count))
		return INVALID_VALUE;
	if ((r = place(&l, &at)))
		return r;
	if (lacks("concurrent"))
		return INVALID_DEVICE;
	struct op *o = op_new(OP_PREFETCH, s->ctx);
	o->dst = p, o->n = n, o->value = (uint32_t)at;
	return submit(s, o);
}
API(cuMemPrefetchAsync, (devptr p, size_t n, int dev, handle s),
	prefetch(p, n, dev == CPU ? (struct location){LOC_HOST, 0} : (struct location){LOC_DEVICE, dev}, 0, s))
API(cuMemPrefetchAsync_v2, (devptr p, size_t n, struct location l, unsigned flags, handle s), prefetch(p, n, l, flags, s))

CUresult run_prefetch(struct op *o) {
	size_t count;
	struct page *g = pages(o->dst, o->n, &count);
	for (size_t i = 0; g && i < count; i++)
		g[i].last = (int)o->value;
	return g ? OK : ILLEGAL_ADDRESS;
}

/* attribute reports a value that is the same for all pages, or NOWHERE. */
static CUresult attribute(void *data, size_t size, int attr, devptr p, size_t n) {
	size_t count;
	struct page *g = pages(p, n, &count);
	int *out = data;
	if (!g || !data || size < 4 || size % 4 || attr < 1 || attr > 4)
		return INVALID_VALUE;
	if (attr == 3) {
		size_t k = 0;
		if (g->host_access && k < size / 4)
			out[k++] = CPU;
		for (int d = 0; d < MAX_DEVICES && k < size / 4; d++)
			if (g->accessed_by & 1u << d)
				out[k++] = d;
		while (k < size / 4)
			out[k++] = NOWHERE;
		return OK;
	}
	if (size != 4)
		return INVALID_VALUE;
	*out = attr == 1 ? g->read_mostly : attr == 2 ? g->preferred : g->last;
	for (size_t i = 1; i < count; i++) {
		int v = attr == 1 ? g[i].read_mostly : attr == 2 ? g[i].preferred : g[i].last;
		if (v != *out)
			*out = attr == 1 ? 0 : NOWHERE;
	}
	return OK;
}
API(cuMemRangeGetAttribute, (void *data, size_t size, int attr, devptr p, size_t n), attribute(data, size, attr, p, n))
