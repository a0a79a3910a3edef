/* Nodes of graphs: how they are made, and their parameters. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

struct kernel_params { handle f; unsigned grid[3], block[3], shared; void **params, **extra; handle kernel, ctx; };
struct memset_params { devptr dst; size_t pitch; unsigned value, width; size_t n, height; handle ctx; };
struct host_params { void (*fn)(void *); void *data; };
struct cond_params { handle handle; int type; unsigned size; handle *out; handle ctx; };
struct copy3d;
struct copy_params { int flags, reserved; handle ctx; uint8_t copy[200]; };
struct child_params { handle graph; int ownership; };
CUresult box_op(struct op **out, const struct copy3d *c, struct ctx *ctx);

/* add puts the node into the graph, after nodes of the same graph. It takes ownership of o. */
static CUresult add(handle *out, handle h, const handle *deps, size_t n, struct op *o) {
	struct graph *g = obj_get(h, T_GRAPH);
	struct op **preds = NULL;
	int count = 0;
	CUresult r = out && g && !(n && !deps) ? OK : INVALID_VALUE;
	for (size_t i = 0; i < n && !r; i++) {
		struct op *p = obj_get(deps[i], T_NODE);
		int before = count;
		if (p && p->owner == g)
			list_add(&preds, &count, p);
		r = count > before ? OK : INVALID_VALUE; /* also for a node that is named twice */
	}
	/* A body of a condition has only work of one device. */
	if (!r && g->body && (o->kind == OP_HOST || o->kind == OP_RECORD || o->kind == OP_WAIT))
		r = NOT_SUPPORTED;
	if (r) {
		drop_op(o);
	} else {
		graph_append(g, o, preds, count);
		*out = o->node;
	}
	free(preds);
	return r;
}

static CUresult context_of(handle h, struct ctx **out) {
	if (!h)
		return current(out);
	*out = obj_get(h, T_CTX);
	return *out ? OK : INVALID_CONTEXT;
}

static CUresult kernel_op(struct op **out, const struct kernel_params *p) {
	struct ctx *c;
	if (!p)
		return INVALID_VALUE;
	CUresult r = context_of(p->ctx, &c);
	handle f = p->f;
	if (!r && !f)
		r = kernel_handle(&f, p->kernel);
	if (r)
		return r;
	struct launch_config config = {.shared = p->shared};
	memcpy(config.grid, p->grid, sizeof config.grid);
	memcpy(config.block, p->block, sizeof config.block);
	return launch_op(out, f, &config, c, p->params, p->extra);
}

static CUresult add_kernel(handle *out, handle g, const handle *deps, size_t n, const struct kernel_params *p) {
	struct op *o;
	CUresult r = kernel_op(&o, p);
	return r ? r : add(out, g, deps, n, o);
}
API(cuGraphAddKernelNode_v2, (handle *out, handle g, const handle *deps, size_t n, const struct kernel_params *p), add_kernel(out, g, deps, n, p))

static CUresult set_op(struct op **out, const struct memset_params *p, handle ctx) {
	struct ctx *c;
	if (!p || !p->n || !p->height || (p->width != 1 && p->width != 2 && p->width != 4) || p->dst % p->width ||
	    (p->height > 1 && p->pitch < p->n * p->width))
		return INVALID_VALUE;
	CUresult r = context_of(ctx, &c);
	if (r || (r = check_device(c, p->dst, (p->height - 1) * p->pitch + p->n * p->width, true, false)))
		return r;
	struct op *o = op_new(OP_SET, c);
	o->dst = p->dst, o->value = p->value, o->width = p->width, o->n = p->n * p->width, o->rows = p->height, o->pitch = p->pitch;
	*out = o;
	return OK;
}

static CUresult add_memset(handle *out, handle g, const handle *deps, size_t n, const struct memset_params *p, handle ctx) {
	struct op *o;
	CUresult r = set_op(&o, p, ctx);
	return r ? r : add(out, g, deps, n, o);
}
API(cuGraphAddMemsetNode, (handle *out, handle g, const handle *deps, size_t n, const struct memset_params *p, handle ctx),
	add_memset(out, g, deps, n, p, ctx))

static CUresult copy_op(struct op **out, const struct copy3d *p, handle ctx) {
	struct ctx *c;
	CUresult r = context_of(ctx, &c);
	if (r || (r = box_op(out, p, c)))
		return r;
	return *out ? OK : INVALID_VALUE;
}

static CUresult add_copy(handle *out, handle g, const handle *deps, size_t n, const struct copy3d *p, handle ctx) {
	struct op *o;
	CUresult r = copy_op(&o, p, ctx);
	return r ? r : add(out, g, deps, n, o);
}
API(cuGraphAddMemcpyNode, (handle *out, handle g, const handle *deps, size_t n, const struct copy3d *p, handle ctx),
	add_copy(out, g, deps, n, p, ctx))

static struct op *host_op(const struct host_params *p) {
	struct op *o = op_new(OP_HOST, current_or_null());
	o->fn = p->fn;
	o->data = p->data;
	return o;
}
API(cuGraphAddHostNode, (handle *out, handle g, const handle *deps, size_t n, const struct host_params *p),
	p && p->fn ? add(out, g, deps, n, host_op(p)) : INVALID_VALUE)
API(cuGraphAddEmptyNode, (handle *out, handle g, const handle *deps, size_t n), add(out, g, deps, n, op_new(OP_NOP, current_or_null())))

static CUresult add_child(handle *out, handle h, const handle *deps, size_t n, handle child, bool move) {
	struct graph *c = obj_get(child, T_GRAPH);
	CUresult r = INVALID_VALUE;
	if (!c || c->inner || child == h)
		return r;
	struct graph *copy = c;
	if (!move && !(copy = graph_copy(c, false, &r)))
		return r;
	copy->inner = true;
	live_add(LIVE_GRAPHS, -1);
	struct op *o = op_new(OP_CHILD, current_or_null());
	o->child[0] = copy;
	o->nchild = 1;
	return add(out, h, deps, n, o);
}
API(cuGraphAddChildGraphNode, (handle *out, handle g, const handle *deps, size_t n, handle child), add_child(out, g, deps, n, child, false))

static CUresult child_graph(handle h, handle *out) {
	struct op *o = obj_get(h, T_NODE);
	if (!o || !out || o->kind != OP_CHILD)
		return INVALID_VALUE;
	*out = o->child[0]->self;
	return OK;
}
API(cuGraphChildGraphNodeGetGraph, (handle h, handle *out), child_graph(h, out))

static CUresult add_event(handle *out, handle g, const handle *deps, size_t n, handle eh, enum op_kind k) {
	struct event *e = obj_get(eh, T_EVENT);
	if (!e)
		return INVALID_HANDLE;
	struct op *o = op_new(k, e->ctx);
	o->ev = e;
	e->refs++;
	return add(out, g, deps, n, o);
}
API(cuGraphAddEventRecordNode, (handle *out, handle g, const handle *deps, size_t n, handle e), add_event(out, g, deps, n, e, OP_RECORD))
API(cuGraphAddEventWaitNode, (handle *out, handle g, const handle *deps, size_t n, handle e), add_event(out, g, deps, n, e, OP_WAIT))

static CUresult node_event(handle h, enum op_kind k, handle *out) {
	struct op *o = obj_get(h, T_NODE);
	if (!o || !out || o->kind != k)
		return INVALID_VALUE;
	*out = o->ev->self;
	return OK;
}
API(cuGraphEventRecordNodeGetEvent, (handle h, handle *out), node_event(h, OP_RECORD, out))
API(cuGraphEventWaitNodeGetEvent, (handle h, handle *out), node_event(h, OP_WAIT, out))

static CUresult condition_new(uint64_t *out, handle h, handle ctx, unsigned initial, unsigned flags) {
	struct graph *g = obj_get(h, T_GRAPH);
	struct ctx *c;
	CUresult r = context_of(ctx, &c);
	if (!out || !g || flags > 1 || (!flags && initial) || g->nconditions == 8)
		return INVALID_VALUE;
	if (r)
		return r;
	struct condition *n = zalloc(sizeof *n);
	*n = (struct condition){.graph = g, .initial = initial, .assign = flags, .refs = 1};
	*out = n->self = obj_add(n, T_COND);
	g->conditions[g->nconditions++] = n;
	return OK;
}
API(cuGraphConditionalHandleCreate, (uint64_t *out, handle g, handle ctx, unsigned initial, unsigned flags),
	condition_new(out, g, ctx, initial, flags))

/* add_condition makes the bodies, whose graphs the node owns, and returns them in memory of the library. A handle belongs to the
 * graph for which it was made, and to one node. */
static CUresult add_condition(handle *out, handle h, const handle *deps, size_t n, struct cond_params *p) {
	static handle bodies[64][8];
	static unsigned next;
	struct condition *c = obj_get(p->handle, T_COND);
	struct graph *g = obj_get(h, T_GRAPH);
	if (!c || !g || c->graph != g || c->used || p->type < 0 || p->type > 2 || !p->size || p->size > (p->type == 0 ? 2u : p->type == 1 ? 1u : 8u))
		return INVALID_VALUE;
	struct ctx *ctx;
	CUresult r = context_of(p->ctx, &ctx);
	if (r)
		return r;
	struct op *o = op_new(OP_COND, ctx);
	o->condition = c;
	o->cond_type = p->type;
	p->out = bodies[next++ % 64];
	for (unsigned i = 0; i < p->size; i++) {
		struct graph *b = o->child[o->nchild++] = graph_new();
		b->inner = b->body = true;
		live_add(LIVE_GRAPHS, -1);
		p->out[i] = b->self;
	}
	c->used = true;
	return add(out, h, deps, n, o);
}

/* node_params is CUgraphNodeParams. */
struct node_params { int type, reserved[3]; union { struct kernel_params kernel; struct memset_params set; struct host_params host; struct copy_params copy;
	struct child_params child; handle event; struct cond_params cond; uint64_t pad[29]; } u; uint64_t end; };

static CUresult add_node(handle *out, handle g, const handle *deps, size_t n, struct node_params *p) {
	_Static_assert(sizeof(struct node_params) == 256, "CUgraphNodeParams has 256 bytes");
	if (!p)
		return INVALID_VALUE;
	switch (p->type) {
	case 0: return add_kernel(out, g, deps, n, &p->u.kernel);
	case 1: return p->u.copy.flags ? INVALID_VALUE : add_copy(out, g, deps, n, (const void *)p->u.copy.copy, p->u.copy.ctx);
	case 2: return add_memset(out, g, deps, n, &p->u.set, p->u.set.ctx);
	case 3: return p->u.host.fn ? add(out, g, deps, n, host_op(&p->u.host)) : INVALID_VALUE;
	case 4: return p->u.child.ownership > 1 ? INVALID_VALUE : add_child(out, g, deps, n, p->u.child.graph, p->u.child.ownership == 1);
	case 5: return add(out, g, deps, n, op_new(OP_NOP, current_or_null()));
	case 6: return add_event(out, g, deps, n, p->u.event, OP_WAIT);
	case 7: return add_event(out, g, deps, n, p->u.event, OP_RECORD);
	case 13: return add_condition(out, g, deps, n, &p->u.cond);
	}
	return NOT_SUPPORTED;
}
API(cuGraphAddNode, (handle *out, handle g, const handle *deps, size_t n, struct node_params *p), add_node(out, g, deps, n, p))
API(cuGraphAddNode_v2, (handle *out, handle g, const handle *deps, const void *edges, size_t n, struct node_params *p),
	!plain_edges(edges, n) ? NOT_SUPPORTED : add_node(out, g, deps, n, p))
#ifndef FAKECUDA_OLD
API(cuGraphAddNode_v3, (handle *out, handle g, const handle *deps, const void *edges, size_t n, struct node_params *p),
	!plain_edges(edges, n) ? NOT_SUPPORTED : add_node(out, g, deps, n, p))
#endif

/* replace gives a node the operation of another one of the same kind. */
static CUresult replace(struct op *o, struct op *n) {
	if (!o || o->kind != n->kind) {
		drop_op(n);
		return INVALID_VALUE;
	}
	struct op old = *o;
	*o = *n;
	o->next = old.next, o->node = old.node, o->owner = old.owner, o->preds = old.preds, o->npreds = old.npreds, o->id = old.id;
	o->origin = old.origin, o->disabled = old.disabled;
	n->f = old.f, n->args = old.args, n->box = old.box, n->nboxes = old.nboxes, n->preds = NULL, n->npreds = 0, n->node = 0, n->ev = old.ev, n->snap = NULL;
	drop_op(n);
	return OK;
}

/* in_exec finds the copy of a node in an executable graph. The node must exist: its graph must not be destroyed. */
static struct op *in_exec(handle h, handle node) {
	struct graph *x = obj_get(node, T_NODE) ? obj_get(h, T_EXEC) : NULL;
	for (struct op *o = x ? x->head : NULL; o; o = o->next)
		if (o->origin == node)
			return o;
	return NULL;
}

static struct op *node_of(handle h) {
	struct op *o = obj_get(h, T_NODE);
	return o && o->owner ? o : NULL;
}

static CUresult set_kernel(struct op *o, const struct kernel_params *p, bool exec) {
	struct op *n;
	CUresult r = kernel_op(&n, p);
	if (!r && exec && o && o->kind == OP_LAUNCH && o->f != n->f && o->f->mod != n->f->mod)
		r = (drop_op(n), INVALID_VALUE); /* an update may change the function, but not its context */
	return r ? r : replace(o, n);
}
API(cuGraphKernelNodeSetParams_v2, (handle h, const struct kernel_params *p), set_kernel(node_of(h), p, false))
API(cuGraphExecKernelNodeSetParams_v2, (handle x, handle h, const struct kernel_params *p), set_kernel(in_exec(x, h), p, true))

static CUresult get_kernel(handle h, struct kernel_params *p) {
	static __thread void *params[32];
	struct op *o = node_of(h);
	if (!o || !p || o->kind != OP_LAUNCH)
		return INVALID_VALUE;
	*p = (struct kernel_params){.f = o->f->self, .shared = o->shared, .params = params, .ctx = o->ctx->self};
	memcpy(p->grid, o->grid, sizeof p->grid);
	memcpy(p->block, o->block, sizeof p->block);
	for (int i = 0; i < o->f->nparams; i++)
		params[i] = o->args + o->f->params[i].off;
	return OK;
}
API(cuGraphKernelNodeGetParams_v2, (handle h, struct kernel_params *p), get_kernel(h, p))

static CUresult set_memset(struct op *o, const struct memset_params *p, handle ctx) {
	struct op *n;
	CUresult r = set_op(&n, p, ctx);
	return r ? r : replace(o, n);
}
API(cuGraphMemsetNodeSetParams, (handle h, const struct memset_params *p), set_memset(node_of(h), p, 0))
API(cuGraphExecMemsetNodeSetParams, (handle x, handle h, const struct memset_params *p, handle ctx), set_memset(in_exec(x, h), p, ctx))

static CUresult get_memset(handle h, struct memset_params *p) {
	struct op *o = node_of(h);
	if (!o || !p || o->kind != OP_SET)
		return INVALID_VALUE;
	p->dst = o->dst, p->pitch = o->pitch, p->value = o->value, p->width = o->width, p->n = o->n / o->width, p->height = o->rows ? o->rows : 1;
	return OK;
}
API(cuGraphMemsetNodeGetParams, (handle h, struct memset_params *p), get_memset(h, p))

static CUresult set_copy(struct op *o, const struct copy3d *p, handle ctx) {
	struct op *n;
	CUresult r = copy_op(&n, p, ctx);
	if (!r && o && o->kind == OP_COPY) /* a captured copy of one dimension */
		o->kind = OP_BOX;
	return r ? r : replace(o, n);
}
API(cuGraphMemcpyNodeSetParams, (handle h, const struct copy3d *p), set_copy(node_of(h), p, 0))
API(cuGraphExecMemcpyNodeSetParams, (handle x, handle h, const struct copy3d *p, handle ctx), set_copy(in_exec(x, h), p, ctx))
API(cuGraphHostNodeSetParams, (handle h, const struct host_params *p), p && p->fn ? replace(node_of(h), host_op(p)) : INVALID_VALUE)
API(cuGraphExecHostNodeSetParams, (handle x, handle h, const struct host_params *p), p && p->fn ? replace(in_exec(x, h), host_op(p)) : INVALID_VALUE)

static CUresult get_host(handle h, struct host_params *p) {
	struct op *o = node_of(h);
	if (!o || !p || o->kind != OP_HOST)
		return INVALID_VALUE;
	*p = (struct host_params){o->fn, o->data};
	return OK;
}
API(cuGraphHostNodeGetParams, (handle h, struct host_params *p), get_host(h, p))

/* Only kernels, copies and fills can be disabled. */
static CUresult enable(handle x, handle h, unsigned on, unsigned *out) {
	struct op *o = in_exec(x, h);
	if (!o || (o->kind != OP_LAUNCH && o->kind != OP_COPY && o->kind != OP_BOX && o->kind != OP_SET))
		return INVALID_VALUE;
	if (out)
		*out = !o->disabled;
	else
		o->disabled = !on;
	return OK;
}
API(cuGraphNodeSetEnabled, (handle x, handle h, unsigned on), enable(x, h, on, NULL))
API(cuGraphNodeGetEnabled, (handle x, handle h, unsigned *on), on ? enable(x, h, 0, on) : INVALID_VALUE)
