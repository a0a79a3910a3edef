package admission

import (
	"errors"
	"io"
)

// Reader returns a reader of r that charges the bytes it reads. It fails with ErrLimit.
func (c *Charge) Reader(r io.Reader) io.Reader { return chargedReader{r, c} }

type chargedReader struct {
	r      io.Reader
	charge *Charge
}

// Read implements io.Reader.
func (c chargedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 {
		if err := c.charge.Add(int64(n)); err != nil {
			return 0, err
		}
	}
	return n, err
}

// Sizes of the pieces of ReadAll.
const (
	firstPiece = 4 << 10
	lastPiece  = 1 << 20
)

// ReadAll reads r to its end and charges the memory of the result, which grows with the received bytes.
func (c *Charge) ReadAll(r io.Reader) ([]byte, error) {
	var pieces [][]byte
	total := 0
	for size := firstPiece; ; size = min(2*size, lastPiece) {
		if err := c.Add(int64(size)); err != nil {
			return nil, err
		}
		piece := make([]byte, size)
		n, end, err := readPiece(r, piece)
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, piece[:n])
		if total += n; end {
			break
		}
	}
	if len(pieces) == 1 {
		return pieces[0], nil
	}
	whole := make([]byte, 0, total)
	for i, piece := range pieces {
		whole = append(whole, piece...)
		pieces[i] = nil
	}
	return whole, nil
}

// readPiece fills p, or reports the end of r. Unlike io.ReadFull, it returns an error if the body is truncated.
func readPiece(r io.Reader, p []byte) (n int, end bool, err error) {
	for n < len(p) {
		more, err := r.Read(p[n:])
		n += more
		if errors.Is(err, io.EOF) {
			return n, true, nil
		}
		if err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}
