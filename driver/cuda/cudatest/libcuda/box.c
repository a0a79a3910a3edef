/* Copies of rows and planes, and batches of copies. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

enum { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 };

/* The records of the API. The layout of the 3D record of two contexts differs only in fields that are not used here. */
struct copy2d {
	size_t src_x, src_y; int src_type; void *src_host; devptr src; handle src_array; size_t src_pitch;
	size_t dst_x, dst_y; int dst_type; void *dst_host; devptr dst; handle dst_array; size_t dst_pitch;
	size_t width, height;
};
struct copy3d {
	size_t src_x, src_y, src_z, src_lod; int src_type; void *src_host; devptr src; handle src_array, src_ctx; size_t src_pitch, src_rows;
	size_t dst_x, dst_y, dst_z, dst_lod; int dst_type; void *dst_host; devptr dst; handle dst_array, dst_ctx; size_t dst_pitch, dst_rows;
	size_t width, height, depth;
};

/* span returns the bytes from the first to the last one of a side. */
static uint64_t span(const struct box *b, const struct operand *o) {
	return ((b->depth - 1) * o->rows + b->height - 1) * o->pitch + b->width;
}

static CUresult check_side(struct ctx *c, const struct box *b, const struct operand *o, bool write) {
	return o->host ? OK : check_device(c, o->at, span(b, o), write, false);
}

static CUresult check_box(struct ctx *c, const struct box *b) {
	CUresult r = check_side(c, b, &b->src, false);
	return r ? r : check_side(c, b, &b->dst, true);
}

CUresult run_boxes(struct op *o) {
	for (int i = 0; i < o->nboxes; i++) {
		struct box *b = &o->box[i];
		if (check_box(o->ctx, b))
			return ILLEGAL_ADDRESS;
		for (uint64_t z = 0; z < b->depth; z++)
			for (uint64_t y = 0; y < b->height; y++) {
				uint64_t d = b->dst.at + (z * b->dst.rows + y) * b->dst.pitch, s = b->src.at + (z * b->src.rows + y) * b->src.pitch;
				CUresult r = copy_bytes(d, b->dst.host, s, b->src.host, b->width);
				if (r)
					return r;
			}
	}
	return OK;
}

bool boxes_use(const struct op *o, devptr p, size_t n) {
	for (int i = 0; i < o->nboxes; i++) {
		const struct box *b = &o->box[i];
		if ((b->dst.at < p + n && p < b->dst.at + span(b, &b->dst)) || (b->src.at < p + n && p < b->src.at + span(b, &b->src)))
			return true;
	}
	return false;
}

/* operand resolves a side of the API's records. */
static CUresult operand(struct operand *out, int type, void *host, devptr dev, size_t pitch, size_t rows, size_t x, size_t y, size_t z,
	const struct box *b) {
	if (type == ARRAY)
		return NOT_SUPPORTED;
	if (type != HOST && type != DEVICE && type != UNIFIED)
		return INVALID_VALUE;
	if (b->height * b->depth > 1 && pitch < x + b->width)
		return INVALID_VALUE;
	if (b->depth > 1 && rows < y + b->height)
		return INVALID_VALUE;
	uint64_t base = type == HOST ? (uint64_t)host : dev;
	out->host = type == HOST || (type == UNIFIED && is_host(dev));
	out->at = base + (z * rows + y) * pitch + x;
	out->pitch = pitch;
	out->rows = rows;
	return base ? OK : INVALID_VALUE;
}

static CUresult box_of(const struct copy3d *c, struct box *b) {
	if (!c || c->src_lod || c->dst_lod)
		return INVALID_VALUE;
	*b = (struct box){.width = c->width, .height = c->height, .depth = c->depth};
	CUresult r = operand(&b->src, c->src_type, c->src_host, c->src, c->src_pitch, c->src_rows, c->src_x, c->src_y, c->src_z, b);
	return r ? r : operand(&b->dst, c->dst_type, c->dst_host, c->dst, c->dst_pitch, c->dst_rows, c->dst_x, c->dst_y, c->dst_z, b);
}

/* box_op makes the operation of a copy of a box, which is NULL if the box is empty. */
CUresult box_op(struct op **out, const struct copy3d *c, struct ctx *ctx) {
	struct box b;
	*out = NULL;
	CUresult r = box_of(c, &b);
	if (r || !b.width || !b.height || !b.depth)
		return r;
	if ((r = check_box(ctx, &b)))
		return r;
	*out = op_new(OP_BOX, ctx);
	(*out)->box = zalloc(sizeof b);
	(*out)->nboxes = 1;
	*(*out)->box = b;
	return OK;
}

static CUresult copy3d(const struct copy3d *c, bool async, handle stream) {
	struct ctx *ctx;
	struct stream *s = NULL;
	struct op *o;
	CUresult r = current(&ctx);
	if (r || (async && (r = stream_of(stream, &s))) || (r = box_op(&o, c, ctx)) || !o)
		return r;
	bool pageable = (o->box->src.host && !pinned(o->box->src.at, span(o->box, &o->box->src))) ||
			(o->box->dst.host && !pinned(o->box->dst.at, span(o->box, &o->box->dst)));
	if (!async) {
		if (!(r = wait_idle(ctx)))
			r = run_op(o);
		drop_op(o);
		return r;
	}
	if ((r = submit(s, o)) || !pageable || s->capture)
		return r;
	drain(s, s->issued); /* the driver waits for a copy of pageable memory */
	return ctx->sticky;
}
API(cuMemcpy3D_v2, (const struct copy3d *c), copy3d(c, false, 0))
API(cuMemcpy3DAsync_v2, (const struct copy3d *c, handle s), copy3d(c, true, s))

static CUresult copy2d(const struct copy2d *c, bool async, handle s) {
	if (!c)
		return INVALID_VALUE;
	struct copy3d d = {c->src_x, c->src_y, 0, 0, c->src_type, c->src_host, c->src, c->src_array, 0, c->src_pitch, 0, c->dst_x, c->dst_y, 0, 0,
		c->dst_type, c->dst_host, c->dst, c->dst_array, 0, c->dst_pitch, 0, c->width, c->height, 1};
	return copy3d(&d, async, s);
}
API(cuMemcpy2D_v2, (const struct copy2d *c), copy2d(c, false, 0))
API(cuMemcpy2DUnaligned_v2, (const struct copy2d *c), copy2d(c, false, 0))
API(cuMemcpy2DAsync_v2, (const struct copy2d *c, handle s), copy2d(c, true, s))

struct copy_attr { int order; struct location src, dst; unsigned flags; };

/* batch queues several copies as one operation. The copies of a batch may run in any order, so ranges that are written must not
 * overlap any other; the driver leaves that undefined, and here it is an error. */
static CUresult batch(const devptr *dst, const devptr *src, const size_t *n, size_t count, const struct copy_attr *attrs, const size_t *first,
	size_t nattrs, handle sh) {
	struct stream *s;
	CUresult r = stream_of(sh, &s);
	if (r)
		return r;
	if (!dst || !src || !n || !count || !attrs || !first || !nattrs || nattrs > count || first[0] || s->null)
		return INVALID_VALUE;
	for (size_t i = 0; i < nattrs; i++)
		if (attrs[i].order < 1 || attrs[i].order > 3 || attrs[i].flags > 1 || (i && first[i] <= first[i - 1]) || first[i] >= count)
			return INVALID_VALUE;
	struct op *o = op_new(OP_BOX, s->ctx);
	o->box = zalloc(count * sizeof *o->box);
	o->nboxes = (int)count;
	for (size_t i = 0; i < count && !r; i++) {
		o->box[i] = (struct box){{dst[i], is_host(dst[i]), n[i], 1}, {src[i], is_host(src[i]), n[i], 1}, n[i], 1, 1};
		r = !dst[i] || !src[i] || !n[i] ? INVALID_VALUE : check_box(s->ctx, &o->box[i]);
		if ((o->box[i].dst.host && !pinned(dst[i], n[i])) || (o->box[i].src.host && !pinned(src[i], n[i])))
			r = r ? r : NOT_SUPPORTED; /* pageable memory is not implemented here */
		for (size_t j = 0; j < i && !r; j++)
			if ((dst[i] < dst[j] + n[j] && dst[j] < dst[i] + n[i]) || (src[i] < dst[j] + n[j] && dst[j] < src[i] + n[i]) ||
			    (dst[i] < src[j] + n[j] && src[j] < dst[i] + n[i]))
				r = INVALID_VALUE;
	}
	if (r) {
		drop_op(o);
		return r;
	}
	return submit(s, o);
}
API(cuMemcpyBatchAsync, (const devptr *d, const devptr *s, const size_t *n, size_t count, const struct copy_attr *a, const size_t *first,
	size_t na, size_t *failed, handle h), ((void)failed, batch(d, s, n, count, a, first, na, h)))
#ifndef FAKECUDA_OLD
API(cuMemcpyBatchAsync_v2, (const devptr *d, const devptr *s, const size_t *n, size_t count, const struct copy_attr *a, const size_t *first,
	size_t na, handle h), batch(d, s, n, count, a, first, na, h))
#endif
