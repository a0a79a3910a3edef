/* Libraries: code that is loaded once for all contexts. Its kernels become functions of a context when they are used there. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

/* library keeps the image, and one module for each context in which it was used. */
struct library { struct library *next; handle self; void *image; struct module *modules[64]; int nmodules; struct kern *kernels; };
static struct library *libraries;
struct kern { struct kern *next; handle self; struct library *lib; char name[128]; };

static CUresult module_in(struct library *l, struct ctx *c, struct module **out) {
	for (int i = 0; i < l->nmodules; i++)
		if (l->modules[i]->ctx == c)
			return *out = l->modules[i], OK;
	if (l->nmodules == 64)
		return OUT_OF_MEMORY;
	CUresult r = module_load(out, l->image, c);
	if (!r)
		l->modules[l->nmodules++] = *out;
	return r;
}

/* library_forget unloads the modules of a context that ends. */
void library_forget(struct ctx *c) {
	for (struct library *l = libraries; l; l = l->next)
		for (int i = 0; i < l->nmodules; i++)
			if (l->modules[i]->ctx == c) {
				module_free(l->modules[i]);
				l->modules[i--] = l->modules[--l->nmodules];
			}
}

static void library_free(struct library *l) {
	for (struct library **p = &libraries; *p; p = &(*p)->next)
		if (*p == l) {
			*p = l->next;
			break;
		}
	for (int i = 0; i < l->nmodules; i++)
		module_free(l->modules[i]);
	for (struct kern *k = l->kernels, *next; k; k = next) {
		next = k->next;
		obj_del(k->self);
		free(k);
	}
	free(l->image);
	free(l);
}

/* load checks the image in the current context, if there is one; otherwise when it is first used. */
static CUresult load(handle *out, const void *code, unsigned njit, const int *jit, void **values, unsigned nopts, const int *opts, void **optvalues) {
	if (!out || !code || (njit && (!jit || !values)) || (nopts && !opts) || nopts > 2)
		return INVALID_VALUE;
	(void)optvalues;
	for (unsigned i = 0; i < nopts; i++)
		if (opts[i] < 0 || opts[i] > 1)
			return INVALID_VALUE;
	CUresult r = jit_check(njit, jit, values);
	if (r)
		return r;
	struct library *l = zalloc(sizeof *l);
	size_t n = image_size(code);
	l->image = zalloc(n + 1);
	memcpy(l->image, code, n);
	struct module *m = NULL;
	struct ctx *c;
	if (current(&c) == OK)
		r = module_in(l, c, &m);
	jit_log(r, njit, jit, values);
	if (r) {
		library_free(l);
		return r;
	}
	live_add(LIVE_MODULES, 1);
	l->next = libraries;
	libraries = l;
	*out = l->self = obj_add(l, T_LIBRARY);
	return OK;
}
API(cuLibraryLoadData, (handle *out, const void *code, int *jit, void **values, unsigned njit, int *opts, void **optvalues, unsigned nopts),
	load(out, code, njit, jit, values, nopts, opts, optvalues))

static CUresult unload(handle h) {
	struct library *l = obj_get(h, T_LIBRARY);
	if (!l)
		return INVALID_HANDLE;
	if (prohibited())
		return STREAM_CAPTURE_UNSUPPORTED;
	obj_del(h);
	live_add(LIVE_MODULES, -1);
	library_free(l);
	return OK;
}
API_RELEASE(cuLibraryUnload, (handle h), unload(h))

/* any_module returns a module of the library, to look up names. */
static CUresult any_module(struct library *l, struct module **out) {
	struct ctx *c;
	if (l->nmodules)
		return *out = l->modules[0], OK;
	CUresult r = current(&c);
	return r ? r : module_in(l, c, out);
}

static CUresult kern_of(struct library *l, const char *name, handle *out) {
	for (struct kern *k = l->kernels; k; k = k->next)
		if (strcmp(k->name, name) == 0)
			return *out = k->self, OK;
	struct kern *k = zalloc(sizeof *k);
	*k = (struct kern){.next = l->kernels, .lib = l};
	strncpy(k->name, name, sizeof k->name - 1);
	*out = k->self = obj_add(k, T_KERNEL);
	l->kernels = k;
	return OK;
}

static CUresult get_kernel(handle *out, handle h, const char *name) {
	struct library *l = obj_get(h, T_LIBRARY);
	struct module *m;
	if (!l)
		return INVALID_HANDLE;
	if (!out || !name)
		return INVALID_VALUE;
	CUresult r = any_module(l, &m);
	if (r)
		return r;
	for (struct func *f = m->funcs; f; f = f->next)
		if (strcmp(f->name, name) == 0)
			return kern_of(l, name, out);
	return NOT_FOUND;
}
API(cuLibraryGetKernel, (handle *out, handle h, const char *name), get_kernel(out, h, name))

static CUresult kernels(handle h, handle *out, unsigned *n) {
	struct library *l = obj_get(h, T_LIBRARY);
	struct module *m;
	unsigned i = 0;
	if (!l)
		return INVALID_HANDLE;
	CUresult r = any_module(l, &m);
	if (r)
		return r;
	for (struct func *f = m->funcs; f; f = f->next, i++)
		if (out && i < *n)
			kern_of(l, f->name, &out[i]);
	*n = i;
	return OK;
}
API(cuLibraryGetKernelCount, (unsigned *n, handle h), n ? kernels(h, NULL, n) : INVALID_VALUE)
API(cuLibraryEnumerateKernels, (handle *out, unsigned n, handle h), out ? kernels(h, out, &n) : INVALID_VALUE)

static CUresult get_module(handle *out, handle h) {
	struct library *l = obj_get(h, T_LIBRARY);
	struct module *m;
	struct ctx *c;
	CUresult r = current(&c);
	if (!l || !out)
		return l ? INVALID_VALUE : INVALID_HANDLE;
	if (r || (r = module_in(l, c, &m)))
		return r;
	if (!m->self)
		m->self = obj_add(m, T_MODULE);
	*out = m->self;
	return OK;
}
API(cuLibraryGetModule, (handle *out, handle h), get_module(out, h))

static CUresult func_in(handle kernel, struct ctx *c, struct func **out) {
	struct kern *k = obj_get(kernel, T_KERNEL);
	struct module *m;
	if (!k)
		return INVALID_HANDLE;
	CUresult r = module_in(k->lib, c, &m);
	for (struct func *f = r ? NULL : m->funcs; f; f = f->next)
		if (strcmp(f->name, k->name) == 0)
			return *out = f, OK;
	return r ? r : NOT_FOUND;
}

/* func_of accepts the handle of a kernel in place of a function, like the driver. */
struct func *func_of(handle h) {
	struct func *f = obj_get(h, T_FUNC);
	struct ctx *c;
	if (!f && obj_get(h, T_KERNEL) && current(&c) == OK)
		func_in(h, c, &f);
	return f;
}

CUresult kernel_handle(handle *out, handle kernel) {
	struct ctx *c;
	struct func *f;
	CUresult r = current(&c);
	if (!r && !(r = func_in(kernel, c, &f)))
		*out = f->self;
	return r;
}
API(cuKernelGetFunction, (handle *out, handle k), out ? kernel_handle(out, k) : INVALID_VALUE)

static CUresult kernel_library(handle *out, handle h) {
	struct kern *k = obj_get(h, T_KERNEL);
	if (!k)
		return INVALID_HANDLE;
	return out ? (*out = k->lib->self, OK) : INVALID_VALUE;
}
API(cuKernelGetLibrary, (handle *out, handle k), kernel_library(out, k))

static CUresult kernel_name(const char **out, handle h) {
	struct kern *k = obj_get(h, T_KERNEL);
	if (!k)
		return INVALID_HANDLE;
	return out ? (*out = k->name, OK) : INVALID_VALUE;
}
API(cuKernelGetName, (const char **out, handle k), kernel_name(out, k))

/* An attribute of a kernel is that of its function in the primary context of the device. */
static CUresult kernel_attribute(handle kernel, int dev, struct func **out) {
	struct ctx *c = current_or_null();
	if (dev < 0 || dev >= device_count)
		return INVALID_DEVICE;
	if (!c || c->dev != dev)
		c = devices[dev].primary;
	return c ? func_in(kernel, c, out) : INVALID_CONTEXT;
}

static CUresult get_attribute(int *out, int attr, handle k, int dev) {
	struct func *f;
	CUresult r = kernel_attribute(k, dev, &f);
	return r ? r : func_attribute(out, attr, f->self);
}
API(cuKernelGetAttribute, (int *out, int attr, handle k, int dev), get_attribute(out, attr, k, dev))

static CUresult set_attribute(int attr, int v, handle k, int dev) {
	struct func *f;
	CUresult r = kernel_attribute(k, dev, &f);
	return r ? r : func_set(f->self, attr, v);
}
API(cuKernelSetAttribute, (int attr, int v, handle k, int dev), set_attribute(attr, v, k, dev))

static CUresult kernel_param(handle h, size_t i, size_t *off, size_t *size) {
	struct kern *k = obj_get(h, T_KERNEL);
	struct module *m;
	if (!k)
		return INVALID_HANDLE;
	CUresult r = any_module(k->lib, &m);
	for (struct func *f = r ? NULL : m->funcs; f; f = f->next)
		if (strcmp(f->name, k->name) == 0)
			return param_info(f->self, i, off, size);
	return r ? r : NOT_FOUND;
}
API(cuKernelGetParamInfo, (handle k, size_t i, size_t *off, size_t *size), kernel_param(k, i, off, size))

static CUresult get_global(devptr *p, size_t *size, handle h, const char *name) {
	struct library *l = obj_get(h, T_LIBRARY);
	struct module *m;
	struct ctx *c;
	CUresult r = current(&c);
	if (!l)
		return INVALID_HANDLE;
	if (!name)
		return INVALID_VALUE;
	if (r || (r = module_in(l, c, &m)))
		return r;
	return module_global(m, name, p, size);
}
API(cuLibraryGetGlobal, (devptr *p, size_t *size, handle h, const char *name), get_global(p, size, h, name))

/* Variables with the attribute .managed are not supported: no library has any. */
API(cuLibraryGetManaged, (devptr *p, size_t *size, handle h, const char *name),
	((void)p, (void)size, (void)name, obj_get(h, T_LIBRARY) ? NOT_FOUND : INVALID_HANDLE))
