package tensor

import (
	"strings"

	"github.com/sharedtensor/sharedtensor/driver"
)

const (
	printThreshold = 1000 // elements, above which only the edges are printed
	printEdge      = 3    // elements printed at each end of a dimension that is cut short
	printWidth     = 80   // columns
	printMost      = 20_000
)

// String formats the tensor as PyTorch does: "tensor(", the elements in nested brackets, non-default properties
// (device, dtype, the size of an empty tensor), ")". Above 1000 elements it prints three at each end of every
// dimension. It reads memory of any device. If the elements cannot be read, it prints the error instead.
func (t *Tensor) String() string {
	text := "tensor(" + t.body()
	out := &strings.Builder{}
	out.WriteString(text)
	// PyTorch counts two columns more than the last line has before the first suffix.
	column := len(text) - strings.LastIndexByte(text, '\n') + 1
	for _, s := range t.suffixes() {
		if column+len(s)+2 > printWidth {
			out.WriteString(",\n       ")
			column = len("tensor(") + len(s)
		} else {
			out.WriteString(", ")
			column += len(s) + 2
		}
		out.WriteString(s)
	}
	out.WriteByte(')')
	return out.String()
}

// suffixes returns the properties printed after the elements.
func (t *Tensor) suffixes() []string {
	var all []string
	if info := t.Device().Info(); info.Type != driver.CPU {
		all = append(all, "device='"+info.String()+"'")
	}
	empty, dt := t.elements == 0, t.spec.DType
	if empty && t.Rank() != 1 || t.Closed() {
		all = append(all, "size="+tuple(t.spec.Shape))
	}
	// The dtype is omitted if the elements imply it.
	shown := dt == Float32 || !empty && (dt == Complex64 || dt == Int64 || dt == Bool)
	if !shown || t.Closed() {
		all = append(all, "dtype=torch."+dt.String())
	}
	return all
}

// tuple formats the shape in parentheses, with a comma for a single size.
func tuple(s Shape) string {
	text := list(s)
	text = text[1 : len(text)-1]
	if len(s) == 1 {
		text += ","
	}
	return "(" + text + ")"
}

// body formats the elements in brackets, or the reason why there are none.
func (t *Tensor) body() string {
	switch {
	case t.Closed():
		return "<closed>"
	case t.elements == 0:
		return "[]"
	case t.spec.DType.Quantized():
		return "<" + tuple(t.spec.Shape) + " in blocks>"
	}
	p := printer{shown: make([][]int64, t.Rank()), shape: t.spec.Shape}
	count := 1
	for d, size := range t.spec.Shape {
		p.shown[d] = shownIndices(size, t.elements > printThreshold)
		if count *= max(len(p.shown[d]), 1); count > printMost {
			return "..."
		}
	}
	values := make([]scalar, 0, count)
	if err := t.reading(func(a access) error { return a.readShown(&values, p.shown) }); err != nil {
		return "<" + err.Error() + ">"
	}
	p.texts, p.columns = formatScalars(values)
	p.write(0)
	return p.out.String()
}

// shownIndices returns the printed indices of a dimension.
func shownIndices(size int64, summarize bool) []int64 {
	n, skip := size, int64(0)
	if summarize && size > 2*printEdge {
		n, skip = 2*printEdge, size-2*printEdge
	}
	if n > printMost { // larger counts end the printing
		n = printMost + 1
	}
	indices := make([]int64, n)
	for i := range indices {
		indices[i] = int64(i)
		if i >= printEdge {
			indices[i] += skip
		}
	}
	return indices
}

// readShown appends the values of the shown elements in row-major order.
func (a access) readShown(values *[]scalar, shown [][]int64) error {
	// Blocks of this size are not staged, because few elements are needed.
	src := newSource(a)
	strides, bits := a.spec.filled(), int64(a.spec.DType.BitSize())
	var visit func(d int, offset int64) error
	visit = func(d int, offset int64) error {
		if d < len(shown) {
			for _, i := range shown[d] {
				if err := visit(d+1, offset+i*strides[d]); err != nil {
					return err
				}
			}
			return nil
		}
		raw, err := a.element(src, offset, bits)
		if err == nil {
			*values = append(*values, readScalar(a.spec.DType, raw))
		}
		return err
	}
	return visit(0, 0)
}

// element returns the bytes of one element, or the code of an element of a packed type.
func (t *Tensor) element(src *source, offset, bits int64) ([]byte, error) {
	if bits < 8 {
		code, err := src.code(t.spec.ByteOffset*8+offset*bits, bits)
		return []byte{code}, err
	}
	return src.window(t.spec.ByteOffset+offset*(bits/8), bits/8)
}

// printer writes nested brackets.
type printer struct {
	out   strings.Builder
	shape Shape
	shown [][]int64
	texts []string // of the shown elements that are not written yet
	// columns is the width of an element in a row.
	columns int
}

// write writes dimension d and those inside it.
func (p *printer) write(d int) {
	switch {
	case d == len(p.shape):
		p.out.WriteString(p.next())
		return
	case d == len(p.shape)-1:
		p.writeRow(d)
		return
	}
	between := "," + strings.Repeat("\n", len(p.shape)-1-d) + strings.Repeat(" ", len("tensor(")+d+1)
	p.out.WriteByte('[')
	for i := range p.shown[d] {
		if i > 0 {
			p.out.WriteString(between)
		}
		if p.gapBefore(d, i) {
			p.out.WriteString("..." + between)
		}
		p.write(d + 1)
	}
	p.out.WriteByte(']')
}

// writeRow writes the innermost dimension, broken into lines.
func (p *printer) writeRow(d int) {
	indent := len("tensor(") + d
	perLine := max(1, (printWidth-indent)/p.columns)
	var items []string
	for i := range p.shown[d] {
		if p.gapBefore(d, i) {
			items = append(items, " ...")
		}
		items = append(items, p.next())
	}
	p.out.WriteByte('[')
	for i, item := range items {
		switch {
		case i == 0:
		case i%perLine == 0:
			p.out.WriteString(",\n" + strings.Repeat(" ", indent+1))
		default:
			p.out.WriteString(", ")
		}
		p.out.WriteString(item)
	}
	p.out.WriteByte(']')
}

// gapBefore reports whether elements are omitted before the i-th shown one.
func (p *printer) gapBefore(d, i int) bool {
	return i == printEdge && int64(len(p.shown[d])) < p.shape[d]
}

// next returns the next text.
func (p *printer) next() string {
	text := p.texts[0]
	p.texts = p.texts[1:]
	return text
}
