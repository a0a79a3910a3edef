/* Memory, and the table of address ranges that map it. */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct range *ranges;
static uint64_t range_ids;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* scribble fills memory, so that code that relies on zeroes, or on freed memory, fails. It fills only the ends of large memory, to
 * avoid allocating all of its pages. */
static void scribble(void *p, size_t n, int value) {
	size_t edge = 1 << 20;
	if (n <= 64 * edge) {
		memset(p, value, n);
		return;
	}
	memset(p, value, edge);
	memset((char *)p + n - edge, value, edge);
}

/* phys_adopt takes ownership of fd, the memory of another process or handle. */
struct phys *phys_adopt(int fd, int dev, size_t size) {
	void *alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (alias == MAP_FAILED) {
		close(fd);
		return NULL;
	}
	struct phys *p = zalloc(sizeof *p);
	*p = (struct phys){.refs = 1, .fd = fd, .dev = dev, .size = size, .alias = alias};
	return p;
}

/* phys_new makes memory on a device. The name of the memfd, which the kernel keeps, contains the data that importers need. */
struct phys *phys_new(int dev, size_t size, unsigned types, CUresult *r) {
	struct device *d = &devices[dev];
	if (size > d->total || d->used > d->total - size)
		return *r = OUT_OF_MEMORY, NULL;
	char name[160], *w = name + snprintf(name, sizeof name, "fakecuda:%016llx:", (unsigned long long)random64());
	for (int i = 0; i < 16; i++)
		w += sprintf(w, "%02x", d->uuid[i]);
	sprintf(w, ":%llx:%x", (unsigned long long)size, types);
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)size)) {
		if (fd >= 0)
			close(fd);
		return *r = OUT_OF_MEMORY, NULL;
	}
	struct phys *p = phys_adopt(fd, dev, size);
	if (!p)
		return *r = OUT_OF_MEMORY, NULL;
	p->nonce = strtoull(name + 9, NULL, 16);
	p->types = types;
	p->counted = true;
	d->used += size;
	scribble(p->alias, size, 0xa5);
	return p;
}

void phys_drop(struct phys *p) {
	if (!p || --p->refs)
		return;
	if (p->mc) {
		multicast_free(p->mc);
		free(p);
		return;
	}
	/* The result of a free before the importer's close is undefined; here the importer then reads garbage. */
	if (p->exported)
		scribble(p->alias, p->size, 0xdb);
	munmap(p->alias, p->size);
	close(p->fd);
	if (p->counted)
		devices[p->dev].used -= p->size;
	free(p);
}

/* reserve_va reserves addresses without access. */
devptr reserve_va(size_t size, size_t align) {
	if (align < 4096)
		align = 4096;
	if (size > SIZE_MAX - align - 4096)
		return 0;
	size_t want = round_up(size, 4096) + align;
	char *p = mmap(NULL, want, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	char *a = (char *)round_up((size_t)p, align), *end = a + round_up(size, 4096);
	if (a > p)
		munmap(p, (size_t)(a - p));
	if (p + want > end)
		munmap(end, (size_t)(p + want - end));
	return (devptr)a;
}

void unreserve_va(devptr p, size_t size) { munmap((void *)p, round_up(size, 4096)); }

void range_insert(struct range *r) {
	r->id = ++range_ids;
	r->next = ranges;
	ranges = r;
}

/* range_new takes ownership of p and maps it at new addresses. */
struct range *range_new(enum kind k, struct phys *p, size_t size, struct ctx *c, int dev) {
	devptr base = reserve_va(size, k == K_VMM ? GRANULARITY : 512);
	if (!base)
		return NULL;
	struct range *r = zalloc(sizeof *r);
	*r = (struct range){.base = base, .size = size, .kind = k, .p = p, .ctx = c, .dev = dev, .opens = 1};
	r->access[dev] = 3;
	range_insert(r);
	live_add(k == K_IPC ? LIVE_IPC : LIVE_ALLOCATIONS, 1);
	return r;
}

void range_free(struct range *r) {
	bool used = fault_users(r->base, r->size);
	for (struct range **p = &ranges; *p; p = &(*p)->next)
		if (*p == r) {
			*p = r->next;
			break;
		}
	if (r->kind != K_VMM && r->kind != K_HOST)
		unreserve_va(r->base, r->size);
	if (r->kind == K_HOST && !(r->flags & 1u << 31) && !used) /* a copy in progress must fault, not crash */
		munmap((void *)r->base, round_up(r->size, 4096));
	live_add(r->kind == K_IPC ? LIVE_IPC : r->kind == K_VMM ? LIVE_MAPPINGS : r->kind == K_HOST ? LIVE_HOST : LIVE_ALLOCATIONS, -1);
	phys_drop(r->p);
	free(r->pages);
	free(r);
}

struct range *range_first(void) { return ranges; }

struct range *range_at(devptr p) {
	for (struct range *r = ranges; r; r = r->next)
		if (p >= r->base && p - r->base < r->size)
			return r;
	return NULL;
}

uint8_t *bytes_of(struct range *r, devptr p) {
	return r->kind == K_HOST ? (uint8_t *)p : (uint8_t *)r->p->alias + r->off + (p - r->base);
}

CUresult alloc_range(enum kind k, size_t bytes, struct ctx *c, devptr *out) {
	CUresult r = OK;
	if (bytes > SIZE_MAX / 2)
		return OUT_OF_MEMORY;
	struct phys *p = phys_new(c->dev, round_up(bytes, GRANULARITY), 0, &r);
	if (!p)
		return r;
	struct range *g = range_new(k, p, bytes, c, c->dev);
	if (!g) {
		phys_drop(p);
		return OUT_OF_MEMORY;
	}
	if (k == K_MANAGED && mmap((void *)g->base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED) {
		range_free(g);
		return OUT_OF_MEMORY;
	}
	*out = g->base;
	return OK;
}
