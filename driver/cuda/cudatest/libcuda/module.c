/* Modules: PTX text (also inside a fatbin) and cubins, and the attributes of their functions. */
#define _GNU_SOURCE
#include "fake.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


/* cubin reads the kernels' names from the sections .text.NAME. Their parameters are unknown. */
static CUresult cubin(const unsigned char *image, struct module *m) {
	const Elf64_Ehdr *h = (const void *)image;
	if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_machine != 190 || h->e_shentsize != sizeof(Elf64_Shdr))
		return INVALID_IMAGE;
	const Elf64_Shdr *s = (const void *)(image + h->e_shoff);
	const char *names = (const char *)image + s[h->e_shstrndx].sh_offset;
	for (int i = 0; i < h->e_shnum; i++)
		if (strncmp(names + s[i].sh_name, ".text.", 6) == 0) {
			struct func *f = zalloc(sizeof *f);
			*f = (struct func){.mod = m, .max_threads = 1024, .dynamic_limit = 49152, .carveout = -1, .nparams = -1, .next = m->funcs};
			snprintf(f->name, sizeof f->name, "%s", names + s[i].sh_name + 6);
			f->self = obj_add(f, T_FUNC);
			m->funcs = f;
		}
	return OK;
}

static CUresult fatbin(const unsigned char *image, struct module *m) {
	struct { uint32_t magic; uint16_t version, header; uint64_t size; } h;
	memcpy(&h, image, sizeof h);
	const char *at = memmem(image + h.header, h.size, ".version", 8), *end = (const char *)image + h.header + h.size;
	if (!at)
		return 209; /* no binary for this GPU */
	char *text = zalloc((size_t)(end - at) + 1);
	memcpy(text, at, (size_t)(end - at));
	CUresult r = ptx_parse(text, m);
	free(text);
	return r;
}

void module_free(struct module *m) {
	/* The functions' records are kept because a graph may still point to them. */
	for (struct func *f = m->funcs; f; f = f->next) {
		obj_del(f->self);
		f->mod = NULL;
	}
	for (struct global *g = m->globals, *next; g; g = next) {
		next = g->next;
		struct range *r = g->p ? range_at(g->p) : NULL;
		if (r) {
			live_add(LIVE_ALLOCATIONS, 1);
			range_free(r);
		}
		free(g);
	}
	if (m->self)
		obj_del(m->self);
	free(m);
}

/* image_size returns the bytes of an image that has its own length, or ends with a zero byte. */
size_t image_size(const void *image) {
	const unsigned char *b = image;
	uint32_t magic;
	if (!b[0] || !b[1] || !b[2])
		return 0;
	memcpy(&magic, b, 4);
	if (magic == 0xba55ed50) {
		struct { uint32_t magic; uint16_t version, header; uint64_t size; } h;
		memcpy(&h, b, sizeof h);
		return h.header + h.size;
	}
	if (b[0] != 0x7f)
		return strlen(image) + 1;
	const Elf64_Ehdr *h = image;
	const Elf64_Shdr *s = (const void *)(b + h->e_shoff);
	size_t end = h->e_shoff + (size_t)h->e_shnum * sizeof *s;
	for (int i = 0; i < h->e_shnum; i++)
		if (s[i].sh_type != SHT_NOBITS && s[i].sh_offset + s[i].sh_size > end)
			end = s[i].sh_offset + s[i].sh_size;
	return end;
}

/* module_load makes a module without a handle. */
CUresult module_load(struct module **out, const void *image, struct ctx *c) {
	CUresult r;
	struct module *m = zalloc(sizeof *m);
	m->ctx = c;
	const unsigned char *b = image;
	uint32_t magic;
	memcpy(&magic, b, b[0] && b[1] && b[2] ? 4 : 1);
	if (b[0] == 0x7f && b[1] == 'E')
		r = cubin(b, m);
	else if (b[0] == 0x50 && b[1] == 0xed && magic == 0xba55ed50)
		r = fatbin(b, m);
	else if (isprint(b[0]) || isspace(b[0]))
		r = ptx_parse(image, m);
	else
		r = INVALID_IMAGE;
	if (r) {
		module_free(m);
		return r;
	}
	*out = m;
	return OK;
}

static CUresult load(handle *out, const void *image) {
	struct ctx *c;
	struct module *m;
	CUresult r = current(&c);
	if (r)
		return r;
	if (!out || !image)
		return INVALID_VALUE;
	if ((r = module_load(&m, image, c)))
		return r;
	live_add(LIVE_MODULES, 1);
	*out = m->self = obj_add(m, T_MODULE);
	return OK;
}
API(cuModuleLoadData, (handle *out, const void *image), load(out, image))
API(cuModuleLoadFatBinary, (handle *out, const void *image), load(out, image))

/* jit_check checks the options of the compiler: known ones, each once, with values in range. */
CUresult jit_check(unsigned n, const int *options, void **values) {
	uint64_t seen = 0;
	for (unsigned i = 0; i < n; i++) {
		unsigned v = (unsigned)(uintptr_t)values[i];
		if (options[i] < 0 || options[i] > 35 || seen & 1ull << options[i])
			return INVALID_VALUE;
		seen |= 1ull << options[i];
		switch (options[i]) {
		case 0: case 1: if (!v) return INVALID_VALUE; break;
		case 7: if (v > 4) return INVALID_VALUE; break;
		case 9: if (v < 10 || v > 200) return INVALID_VALUE; break;
		case 10: case 11: case 12: case 13: case 16: if (v > 1) return INVALID_VALUE; break;
		case 14: if (v > 2) return INVALID_VALUE; break;
		}
	}
	/* A buffer for messages needs its size, and the target is named in one way. */
	if ((seen >> 3 & 1) != (seen >> 4 & 1) || (seen >> 5 & 1) != (seen >> 6 & 1) || (seen >> 8 & 1 && seen >> 9 & 1))
		return INVALID_VALUE;
	return OK;
}

/* jit_log writes the messages of the compiler to the buffers among the options, and the bytes used to the values of their sizes. */
void jit_log(CUresult r, unsigned n, const int *options, void **values) {
	char *logs[2] = {NULL, NULL};
	int verbose = 0;
	for (unsigned i = 0; i < n; i++) {
		if (options[i] == 3 || options[i] == 5)
			logs[options[i] == 5] = values[i];
		if (options[i] == 12)
			verbose = (int)(uintptr_t)values[i];
		if (options[i] == 2) { /* the time, as a float in the value */
			float ms = 0.5f;
			memcpy(&values[i], &ms, sizeof ms);
		}
	}
	for (unsigned i = 0; i < n; i++)
		if (options[i] == 4 || options[i] == 6) {
			char *log = logs[options[i] == 6];
			size_t size = (unsigned)(uintptr_t)values[i];
			const char *text = options[i] == 6 ? (r ? "ptxas fatal   : syntax error" : "") : verbose && !r ? "ptxas info    : 0 bytes gmem" : "";
			if (log && size)
				values[i] = (void *)(uintptr_t)snprintf(log, size, "%s", text);
		}
}

/* load_ex also compiles with options. */
static CUresult load_ex(handle *out, const void *image, unsigned n, const int *options, void **values) {
	if (n && (!options || !values))
		return INVALID_VALUE;
	CUresult r = jit_check(n, options, values);
	if (r)
		return r;
	r = load(out, image);
	jit_log(r, n, options, values);
	return r;
}
API(cuModuleLoadDataEx, (handle *out, const void *image, unsigned n, int *options, void **values), load_ex(out, image, n, options, values))

static CUresult unload(handle h) {
	struct module *m = obj_get(h, T_MODULE);
	struct ctx *c;
	CUresult r = current(&c);
	if (r && r != ILLEGAL_ADDRESS)
		return r;
	if (!m)
		return INVALID_HANDLE;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	obj_del(h);
	live_add(LIVE_MODULES, -1);
	module_free(m);
	return OK;
}
API_RELEASE(cuModuleUnload, (handle h), unload(h))

static CUresult get_function(handle *out, handle h, const char *name) {
	struct module *m = obj_get(h, T_MODULE);
	if (!m)
		return INVALID_HANDLE;
	if (!out || !name)
		return INVALID_VALUE;
	for (struct func *f = m->funcs; f; f = f->next)
		if (strcmp(f->name, name) == 0)
			return *out = f->self, OK;
	return NOT_FOUND;
}
API(cuModuleGetFunction, (handle *out, handle h, const char *name), get_function(out, h, name))

CUresult module_global(struct module *m, const char *name, devptr *p, size_t *size) {
	for (struct global *g = m->globals; g; g = g->next)
		if (strcmp(g->name, name) == 0) {
			if (p)
				*p = g->p;
			if (size)
				*size = g->size;
			return OK;
		}
	return NOT_FOUND;
}

static CUresult get_global(devptr *p, size_t *size, handle h, const char *name) {
	struct module *m = obj_get(h, T_MODULE);
	if (!m)
		return INVALID_HANDLE;
	return name ? module_global(m, name, p, size) : INVALID_VALUE;
}
API(cuModuleGetGlobal_v2, (devptr *p, size_t *size, handle h, const char *name), get_global(p, size, h, name))

static CUresult count(unsigned *n, handle *out, handle h) {
	struct module *m = obj_get(h, T_MODULE);
	if (!m)
		return INVALID_HANDLE;
	unsigned i = 0;
	for (struct func *f = m->funcs; f; f = f->next, i++)
		if (out && i < *n)
			out[i] = f->self;
	*n = i;
	return OK;
}
API(cuModuleGetFunctionCount, (unsigned *n, handle h), n ? count(n, NULL, h) : INVALID_VALUE)
API(cuModuleEnumerateFunctions, (handle *out, unsigned n, handle h), out ? count(&n, out, h) : INVALID_VALUE)

static CUresult func_name(const char **out, handle h) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	return out ? (*out = f->name, OK) : INVALID_VALUE;
}
API(cuFuncGetName, (const char **out, handle h), func_name(out, h))

static CUresult func_module(handle *out, handle h) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	return out ? (*out = f->mod->self, OK) : INVALID_VALUE;
}
API(cuFuncGetModule, (handle *out, handle h), func_module(out, h))

CUresult param_info(handle h, size_t i, size_t *off, size_t *size) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	if (f->nparams < 0)
		return NOT_SUPPORTED;
	if (!off || i >= (size_t)f->nparams)
		return INVALID_VALUE;
	*off = f->params[i].off;
	if (size)
		*size = f->params[i].size;
	return OK;
}
API(cuFuncGetParamInfo, (handle h, size_t i, size_t *off, size_t *size), param_info(h, i, off, size))
#ifndef FAKECUDA_OLD
static CUresult param_count(handle h, size_t *n) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	return n && f->nparams >= 0 ? (*n = (size_t)f->nparams, OK) : INVALID_VALUE;
}
API(cuFuncGetParamCount, (handle h, size_t *n), param_count(h, n))
#endif

CUresult func_attribute(int *out, int attr, handle h) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	if (!out || attr < 0 || attr > 17)
		return INVALID_VALUE;
	switch (attr) {
	case 0: *out = f->max_threads; break;
	case 4: *out = 32; break;
	case 5: case 6: *out = 90; break;
	case 8: *out = f->dynamic_limit; break;
	case 9: *out = f->carveout; break;
	case 14: *out = f->large_clusters; break;
	case 15: *out = f->scheduling; break;
	default: *out = 0;
	}
	return OK;
}
API(cuFuncGetAttribute, (int *out, int attr, handle h), func_attribute(out, attr, h))

CUresult func_set(handle h, int attr, int v) {
	struct func *f = obj_get(h, T_FUNC);
	if (!f)
		return INVALID_HANDLE;
	if (attr == 8 && v >= 0 && v <= 232448)
		f->dynamic_limit = v;
	else if (attr == 9 && v >= -1 && v <= 100)
		f->carveout = v;
	else if (attr == 14 && (v == 0 || v == 1))
		f->large_clusters = v;
	else if (attr == 15 && v >= 0 && v <= 2)
		f->scheduling = v;
	else
		return INVALID_VALUE;
	return OK;
}
API(cuFuncSetAttribute, (handle h, int attr, int v), func_set(h, attr, v))
