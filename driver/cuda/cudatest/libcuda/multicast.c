/* Multicast objects: one address whose writes go to memory of several devices. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

struct mc_prop { unsigned devices; size_t size; uint64_t types, flags; };
struct binding { struct binding *next; struct phys *p; int dev; size_t at, from, size; };
struct multicast { unsigned want, have; bool member[MAX_DEVICES]; struct binding *bound; };

static CUresult check_prop(const struct mc_prop *p) {
	if (!p || p->devices < 1 || p->devices > (unsigned)device_count || p->flags || p->types & ~9ull)
		return INVALID_VALUE;
	return lacks("multicast") ? NOT_SUPPORTED : OK;
}

static CUresult granularity(size_t *out, const struct mc_prop *p, int option) {
	CUresult r = check_prop(p);
	return r ? r : out && (option == 0 || option == 1) ? (*out = GRANULARITY, OK) : INVALID_VALUE;
}
API(cuMulticastGetGranularity, (size_t *out, const struct mc_prop *p, int option), granularity(out, p, option))

static CUresult create(handle *out, const struct mc_prop *p) {
	CUresult r = check_prop(p);
	if (r)
		return r;
	if (!out || !p->size || p->size % GRANULARITY)
		return INVALID_VALUE;
	struct phys *m = zalloc(sizeof *m);
	*m = (struct phys){.refs = 1, .fd = -1, .size = p->size, .types = (unsigned)p->types, .mc = zalloc(sizeof *m->mc)};
	m->mc->want = p->devices;
	*out = vmm_add(m, &(struct alloc_prop){.type = 1, .types = (unsigned)p->types, .loc = {1, 0}});
	return OK;
}
API(cuMulticastCreate, (handle *out, const struct mc_prop *p), create(out, p))

void multicast_free(struct multicast *m) {
	for (struct binding *b = m->bound, *next; b; b = next) {
		next = b->next;
		phys_drop(b->p);
		free(b);
	}
	free(m);
}

static struct multicast *get(handle h, size_t *size) {
	struct vmm *v = obj_get(h, T_VMM);
	if (v && size)
		*size = v->p->size;
	return v ? v->p->mc : NULL;
}

static CUresult add_device(handle h, int dev) {
	struct multicast *m = get(h, NULL);
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (!m || m->member[dev] || m->have == m->want)
		return INVALID_VALUE;
	m->member[dev] = true;
	m->have++;
	return OK;
}
API(cuMulticastAddDevice, (handle h, int dev), add_device(h, dev))

/* bind takes memory of a member, after all devices have been added, where that device has none bound yet. */
static CUresult bind(handle h, size_t at, struct phys *p, size_t from, size_t size, uint64_t flags) {
	size_t whole;
	struct multicast *m = get(h, &whole);
	if (!m || !p || p->mc || flags || !size || (at | from | size) % GRANULARITY || at > whole || size > whole - at || from > p->size ||
	    size > p->size - from || !m->member[p->dev])
		return INVALID_VALUE;
	if (m->have < m->want)
		return ILLEGAL_STATE;
	for (struct binding *b = m->bound; b; b = b->next)
		if (b->dev == p->dev && at < b->at + b->size && b->at < at + size)
			return INVALID_VALUE;
	struct binding *b = zalloc(sizeof *b);
	*b = (struct binding){m->bound, p, p->dev, at, from, size};
	p->refs++;
	m->bound = b;
	return OK;
}

static CUresult bind_mem(handle h, size_t at, handle mem, size_t from, size_t size, uint64_t flags) {
	struct vmm *v = obj_get(mem, T_VMM);
	return v ? bind(h, at, v->p, from, size, flags) : INVALID_VALUE;
}
API(cuMulticastBindMem, (handle h, size_t at, handle mem, size_t from, size_t size, uint64_t flags), bind_mem(h, at, mem, from, size, flags))

/* Addresses must be of cuMemMap, like the memory of a handle. */
static CUresult bind_addr(handle h, size_t at, devptr p, size_t size, uint64_t flags) {
	struct range *r = range_at(p);
	return r && r->kind == K_VMM && size <= r->base + r->size - p ? bind(h, at, r->p, r->off + (p - r->base), size, flags) : INVALID_VALUE;
}
API(cuMulticastBindAddr, (handle h, size_t at, devptr p, size_t size, uint64_t flags), bind_addr(h, at, p, size, flags))

static CUresult unbind(handle h, int dev, size_t at, size_t size) {
	struct multicast *m = get(h, NULL);
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (!m || !m->member[dev])
		return INVALID_VALUE;
	for (struct binding **p = &m->bound; *p; p = &(*p)->next)
		if ((*p)->dev == dev && (*p)->at == at && (*p)->size == size) {
			struct binding *b = *p;
			*p = b->next;
			phys_drop(b->p);
			free(b);
			return OK;
		}
	return INVALID_VALUE;
}
API_RELEASE(cuMulticastUnbind, (handle h, int dev, size_t at, size_t size), unbind(h, dev, at, size))

/* multicast_fill is what kernels do with multimem instructions: it writes count words at p to the memory of each member. It returns
 * false unless p is an address of a multicast object with memory of every member. */
bool multicast_fill(struct ctx *c, devptr p, uint32_t value, uint64_t count) {
	struct range *r = range_at(p);
	if (!r || r->kind != K_VMM || !r->p->mc || !(r->access[c->dev] & 2) || count > (r->base + r->size - p) / 4)
		return false;
	struct multicast *m = r->p->mc;
	size_t at = r->off + (p - r->base);
	for (uint64_t i = 0; i < count; i++) {
		unsigned reached = 0;
		for (struct binding *b = m->bound; b; b = b->next)
			if (at + 4 * i >= b->at && at + 4 * i + 4 <= b->at + b->size) {
				memcpy((uint8_t *)b->p->alias + b->from + (at + 4 * i - b->at), &value, 4);
				reached++;
			}
		if (reached < m->want)
			return false;
	}
	return true;
}
