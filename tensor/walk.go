package tensor

// run is a row of blocks at equal distances. Everything is in elements.
type run struct {
	offset int64 // of the first block, from the tensor's first element
	count  int64 // blocks
	stride int64 // from one block to the next
	block  int64 // elements of a block, side by side
}

// walker visits the elements of a spec in row-major order as runs, as long as the strides allow.
type walker struct {
	shape, strides []int64 // what lies outside a run, outermost first
	index          []int64
	run            run
	done           bool
}

// newWalker begins the walk of a valid spec. With single, blocks are elements: what packed types need, whose blocks may
// begin inside a byte.
func newWalker(s *Spec, single bool) *walker {
	w := &walker{run: run{count: 1, block: 1}}
	strides := s.filled()
	d := len(s.Shape) - 1
	for ; d >= 0 && !single && (s.Shape[d] == 1 || strides[d] == w.run.block); d-- {
		w.run.block *= s.Shape[d]
	}
	if d >= 0 {
		w.run.count, w.run.stride = s.Shape[d], strides[d]
		d--
	}
	w.shape, w.strides = s.Shape[:d+1], strides[:d+1]
	w.index = make([]int64, d+1)
	for _, size := range s.Shape {
		w.done = w.done || size == 0
	}
	return w
}

// next returns the next run, or false at the end.
func (w *walker) next() (run, bool) {
	if w.done {
		return run{}, false
	}
	r := w.run
	for d := len(w.shape) - 1; ; d-- {
		if d < 0 {
			w.done = true
			return r, true
		}
		w.run.offset += w.strides[d]
		if w.index[d]++; w.index[d] < w.shape[d] {
			return r, true
		}
		w.run.offset -= w.shape[d] * w.strides[d]
		w.index[d] = 0
	}
}
