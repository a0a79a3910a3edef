/* Executable graphs: instantiation, update and launch; conditions; user objects. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUresult instantiate(handle *out, handle h, uint64_t flags) {
	struct ctx *c;
	CUresult r = current(&c);
	struct graph *g = obj_get(h, T_GRAPH);
	if (r)
		return r;
	if (!out || !g || flags & ~15ull)
		return INVALID_VALUE;
	for (int i = 0; i < g->nconditions; i++)
		if (!g->conditions[i]->used)
			return INVALID_VALUE;
	struct graph *x = graph_copy(g, true, &r);
	if (!x)
		return r;
	x->ctx = c;
	x->flags = flags;
	*out = x->self;
	return OK;
}
API(cuGraphInstantiateWithFlags, (handle *out, handle h, uint64_t flags), instantiate(out, h, flags))

struct instantiate_params { uint64_t flags; handle upload, error_node; int result; };
static CUresult instantiate_params(handle *out, handle h, struct instantiate_params *p) {
	if (!p)
		return INVALID_VALUE;
	CUresult r = instantiate(out, h, p->flags);
	p->error_node = 0;
	p->result = r ? 2 : 0; /* an invalid structure */
	struct graph *g = obj_get(h, T_GRAPH);
	for (int i = 0; r && g && i < g->nconditions; i++)
		if (!g->conditions[i]->used)
			p->result = 5;
	return r;
}
API(cuGraphInstantiateWithParams, (handle *out, handle h, struct instantiate_params *p), instantiate_params(out, h, p))

static CUresult destroy(handle h) {
	struct graph *x = obj_get(h, T_EXEC);
	if (!x)
		return INVALID_VALUE;
	fault_exec(h);
	graph_free(x);
	return OK;
}
API_RELEASE(cuGraphExecDestroy, (handle h), destroy(h))

static CUresult flags(handle h, uint64_t *out) {
	struct graph *x = obj_get(h, T_EXEC);
	return x && out ? (*out = x->flags, OK) : INVALID_VALUE;
}
API(cuGraphExecGetFlags, (handle h, uint64_t *out), flags(h, out))

/* deep returns a copy of an operation with its bodies, for one launch. */
static struct op *deep(struct op *o, handle exec) {
	CUresult r;
	struct op *n = op_clone(o);
	n->exec = exec;
	for (int i = 0; i < o->nchild; i++)
		if ((n->child[n->nchild] = graph_copy(o->child[i], true, &r))) {
			n->child[n->nchild++]->inner = true;
			live_add(LIVE_GRAPHS, -1);
		}
	return n;
}

CUresult graph_submit(struct graph *x, struct stream *s, handle exec) {
	CUresult r = OK;
	for (int i = 0; i < x->nconditions && !r; i++)
		if (x->conditions[i]->assign) {
			struct op *o = op_new(OP_RESET, s->ctx);
			o->value64 = x->conditions[i]->self;
			r = submit(s, o);
		}
	for (struct op *o = x->head; o && !r; o = o->next)
		if (!o->disabled)
			r = submit(s, deep(o, exec));
	return r;
}

static CUresult launch(handle h, handle sh) {
	struct graph *x = obj_get(h, T_EXEC);
	struct stream *s;
	if (!x)
		return INVALID_VALUE;
	CUresult r = stream_of(sh, &s);
	if (r)
		return r;
	if (!s->capture)
		return graph_submit(x, s, h);
	struct op *o = op_new(OP_CHILD, s->ctx);
	o->child[0] = graph_copy(x, false, &r);
	if (r)
		return drop_op(o), r;
	o->nchild = 1;
	o->child[0]->inner = true;
	live_add(LIVE_GRAPHS, -1);
	return submit(s, o);
}
API(cuGraphLaunch, (handle h, handle s), launch(h, s))

static CUresult upload(handle h, handle sh) {
	struct stream *s;
	return obj_get(h, T_EXEC) ? stream_of(sh, &s) : INVALID_VALUE;
}
API(cuGraphUpload, (handle h, handle s), upload(h, s))

void run_reset(struct op *o) {
	struct condition *c = obj_get(o->value64, T_COND);
	if (c)
		c->value = c->initial;
}

void set_condition(handle h, uint32_t value) {
	struct condition *c = obj_get(h, T_COND);
	if (c)
		c->value = value;
}

static CUresult run_body(struct graph *g, struct ctx *c) {
	CUresult r = OK;
	for (struct op *o = g->head; o && !r && !c->sticky; o = o->next)
		r = run_op(o);
	return r;
}

/* run_condition executes the bodies of a node: of "if" and "switch" the one that the value selects, of "while" the one body until
 * the value is 0. */
CUresult run_condition(struct op *o) {
	CUresult r = OK;
	uint32_t v = o->condition->value;
	switch (o->cond_type) {
	case 0:
		if (v)
			return run_body(o->child[0], o->ctx);
		return o->nchild > 1 ? run_body(o->child[1], o->ctx) : OK;
	case 1:
		while (o->condition->value && !r && !o->ctx->sticky && !o->fault)
			r = run_body(o->child[0], o->ctx);
		return r;
	}
	return v < (uint32_t)o->nchild ? run_body(o->child[v], o->ctx) : OK;
}

/* update_info is CUgraphExecUpdateResultInfo. */
struct update_info { int result; handle node, from; };
enum { UPDATED, ERROR, TOPOLOGY, TYPE, FUNCTION, PARAMETERS, UNSUPPORTED };

/* same_edges reports whether two nodes depend on nodes at the same places. */
static bool same_edges(struct graph *x, struct op *a, struct graph *y, struct op *b) {
	if (a->npreds != b->npreds)
		return false;
	for (struct op *p = x->head, *q = y->head; p && q; p = p->next, q = q->next) {
		bool in = false, other = false;
		for (int i = 0; i < a->npreds; i++) {
			in |= a->preds[i] == p;
			other |= b->preds[i] == q;
		}
		if (in != other)
			return false;
	}
	return true;
}

static CUresult update(handle xh, handle gh, struct update_info *info) {
	struct graph *x = obj_get(xh, T_EXEC), *g = obj_get(gh, T_GRAPH);
	CUresult r = OK;
	if (!x || !g || !info)
		return INVALID_VALUE;
	struct graph *y = graph_copy(g, true, &r);
	if (!y)
		return r;
	*info = (struct update_info){.result = x->n == y->n && x->nconditions == y->nconditions ? UPDATED : TOPOLOGY};
	for (struct op *a = x->head, *b = y->head; a && b && !info->result; a = a->next, b = b->next) {
		if (a->kind != b->kind || a->kind == OP_COND)
			info->result = a->kind == b->kind ? UNSUPPORTED : TYPE;
		else if (!same_edges(x, a, y, b))
			info->result = TOPOLOGY;
		else if (a->kind == OP_LAUNCH && a->f->mod && b->f->mod && a->f->mod->ctx != b->f->mod->ctx)
			info->result = FUNCTION;
		else if (a->kind == OP_COPY && (a->src_host != b->src_host || a->dst_host != b->dst_host))
			info->result = PARAMETERS;
		if (info->result)
			info->node = b->origin;
	}
	if (info->result) {
		graph_free(y);
		return GRAPH_EXEC_UPDATE_FAILURE;
	}
	/* The executable graph takes the nodes of the copy. Its handle, and the nodes that select its own in later calls, are those of
	 * the graph that it was instantiated from. */
	for (struct op *a = x->head, *b = y->head; a && b; a = a->next, b = b->next)
		b->origin = a->origin;
	struct graph swap = *x;
	x->head = y->head, x->tail = y->tail;
	for (struct op *o = x->head; o; o = o->next)
		o->owner = x;
	y->head = swap.head, y->tail = swap.tail;
	memcpy(x->held, y->held, sizeof x->held);
	memcpy(y->held, swap.held, sizeof y->held);
	x->nheld = y->nheld, y->nheld = swap.nheld;
	graph_free(y);
	return OK;
}
API(cuGraphExecUpdate_v2, (handle x, handle g, struct update_info *info), update(x, g, info))

static CUresult dot(handle h, const char *path, unsigned flags) {
	struct graph *g = obj_get(h, T_GRAPH);
	FILE *f = g && path ? fopen(path, "we") : NULL;
	(void)flags;
	if (!f)
		return g ? OPERATING_SYSTEM : INVALID_VALUE;
	fprintf(f, "digraph dot {\n");
	for (struct op *o = g->head; o; o = o->next) {
		fprintf(f, "n%u [label=\"%d\"];\n", o->id, o->kind);
		for (int i = 0; i < o->npreds; i++)
			fprintf(f, "n%u -> n%u;\n", o->preds[i]->id, o->id);
	}
	fprintf(f, "}\n");
	fclose(f);
	return OK;
}
API(cuGraphDebugDotPrint, (handle h, const char *path, unsigned flags), dot(h, path, flags))

/* user is a user object. Its destructor runs on a thread of the library when the last reference is released. */
struct user { handle self; void (*destroy)(void *); void *data; unsigned refs; };

static void *destructor(void *arg) {
	struct user *u = arg;
	in_callback = true;
	u->destroy(u->data);
	free(u);
	return NULL;
}

void user_keep(struct user *u, unsigned n) { u->refs += n; }

void user_drop(struct user *u, unsigned n) {
	pthread_t t;
	if ((u->refs -= n))
		return;
	obj_del(u->self);
	if (pthread_create(&t, NULL, destructor, u) == 0)
		pthread_detach(t);
}

static CUresult user_create(handle *out, void *data, void (*destroy)(void *), unsigned refs, unsigned flags) {
	if (!out || !destroy || !refs || refs > 0x7fffffff || flags != 1)
		return INVALID_VALUE;
	struct user *u = zalloc(sizeof *u);
	*u = (struct user){0, destroy, data, refs};
	*out = u->self = obj_add(u, T_USER);
	return OK;
}
API(cuUserObjectCreate, (handle *out, void *data, void (*destroy)(void *), unsigned refs, unsigned flags),
	user_create(out, data, destroy, refs, flags))

static CUresult user_count(handle h, unsigned n, bool keep) {
	struct user *u = obj_get(h, T_USER);
	if (!u || !n || (!keep && n > u->refs))
		return INVALID_VALUE;
	keep ? user_keep(u, n) : user_drop(u, n);
	return OK;
}
API(cuUserObjectRetain, (handle h, unsigned n), user_count(h, n, true))
API_RELEASE(cuUserObjectRelease, (handle h, unsigned n), user_count(h, n, false))

static CUresult graph_hold(handle gh, handle uh, unsigned n, unsigned flags) {
	struct graph *g = obj_get(gh, T_GRAPH);
	struct user *u = obj_get(uh, T_USER);
	if (!g || !u || !n || flags > 1 || (flags && n > u->refs) || g->nheld == 64)
		return INVALID_VALUE;
	if (!flags)
		user_keep(u, n);
	g->held[g->nheld++] = (struct held){u, n};
	return OK;
}
API(cuGraphRetainUserObject, (handle g, handle u, unsigned n, unsigned flags), graph_hold(g, u, n, flags))

static CUresult graph_release(handle gh, handle uh, unsigned n) {
	struct graph *g = obj_get(gh, T_GRAPH);
	struct user *u = obj_get(uh, T_USER);
	for (int i = 0; g && u && i < g->nheld; i++)
		if (g->held[i].u == u && n && n <= g->held[i].n) {
			if (!(g->held[i].n -= n))
				g->held[i] = g->held[--g->nheld];
			user_drop(u, n);
			return OK;
		}
	return INVALID_VALUE;
}
API_RELEASE(cuGraphReleaseUserObject, (handle g, handle u, unsigned n), graph_release(g, u, n))
