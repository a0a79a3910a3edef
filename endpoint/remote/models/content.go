package models

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sort"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// pieceBytes is the size of one write. It is large enough that the cost of the system call is negligible.
const pieceBytes = 1 << 20

// content is a sequence of byte ranges that is read as one file. Host memory is written to the connection without a
// copy.
type content struct {
	parts []part
	size  int64
	pos   int64
	files files // nil if the kernel must not send from files
}

// part is a range of bytes in host memory or on a device.
type part struct {
	begin, size int64
	data        []byte
	memory      driver.Memory // nil if data holds all bytes
	offset      int64         // in memory
}

// add appends a part.
func (c *content) add(p part) {
	p.begin = c.size
	c.parts = append(c.parts, p)
	c.size += p.size
}

// addTensor appends the bytes of t. It borrows t.
func (c *content) addTensor(t *tensor.Tensor) error {
	if t.Bytes() == 0 {
		return nil
	}
	if !t.Contiguous() {
		return fmt.Errorf("%w: its elements are not one run of memory; the owner has to publish a contiguous copy", ErrSerialization)
	}
	p := part{size: t.Bytes(), memory: t.Storage().Memory(), offset: t.Spec().ByteOffset}
	if data, err := tensor.RawData(t); err == nil {
		p.data = data[:t.Bytes()]
	}
	c.add(p)
	return nil
}

// tensorContent returns the bytes of t as content. It borrows t.
func tensorContent(t *tensor.Tensor) (*content, error) {
	c := &content{}
	return c, c.addTensor(t)
}

// Seek implements io.Seeker.
func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.pos
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	c.pos = offset
	return offset, nil
}

// partAt returns the part that contains the byte at pos, which must be less than size.
func (c *content) partAt(pos int64) *part {
	i := sort.Search(len(c.parts), func(i int) bool { return c.parts[i].begin+c.parts[i].size > pos })
	return &c.parts[i]
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	if c.pos >= c.size {
		return 0, io.EOF
	}
	at := c.partAt(c.pos)
	from := c.pos - at.begin
	n := int(min(int64(len(p)), at.size-from))
	var err error
	if at.data != nil {
		copy(p[:n], at.data[from:])
	} else {
		n, err = at.memory.ReadAt(p[:n], at.offset+from)
		if errors.Is(err, io.EOF) && n > 0 {
			err = nil
		}
	}
	c.pos += int64(n)
	return n, err
}

// send writes the next n bytes piece by piece. It does not copy host memory.
func (c *content) send(w io.Writer, n int64) (sent int64, err error) {
	var buffer []byte
	for sent < n && c.pos < c.size {
		at := c.partAt(c.pos)
		from := c.pos - at.begin
		left := min(n-sent, at.size-from)
		if file := c.files.of(at, left); file != nil {
			wrote, err := sendFile(w, file, at.offset+from, min(filePiece, left))
			sent += wrote
			c.pos += wrote
			if err != nil {
				return sent, err
			}
			continue
		}
		data := at.data
		if data != nil {
			data = data[from:][:min(pieceBytes, left)]
			c.pos += int64(len(data))
		} else {
			if buffer == nil {
				buffer = make([]byte, pieceBytes)
			}
			read, err := c.Read(buffer[:min(pieceBytes, left)])
			if err != nil {
				return sent, err
			}
			data = buffer[:read]
		}
		written, err := w.Write(data)
		sent += int64(written)
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// contentWriter lets http.ServeContent, which handles ranges and conditional requests, send content without copies.
type contentWriter struct{ http.ResponseWriter }

// ReadFrom implements io.ReaderFrom. http.ServeContent copies from an io.LimitedReader over the content.
func (w *contentWriter) ReadFrom(r io.Reader) (int64, error) {
	if limited, ok := r.(*io.LimitedReader); ok {
		if source, ok := limited.R.(*content); ok {
			n, err := source.send(w.ResponseWriter, limited.N)
			limited.N -= n
			return n, err
		}
	}
	return io.Copy(struct{ io.Writer }{w}, r)
}

// Unwrap returns the wrapped writer for http.ResponseController.
func (w *contentWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// serveContent answers GET and HEAD, including ranges and conditional requests. digest is the SHA-256 of the whole
// content in hexadecimal.
func serveContent(w http.ResponseWriter, r *http.Request, source *content, digest string) {
	h := w.Header()
	h.Set("ETag", `"sha256-`+digest+`"`)
	h.Set("Repr-Digest", "sha-256=:"+base64OfHex(digest)+":")
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/octet-stream")
	}
	http.ServeContent(&contentWriter{w}, r, "", time.Time{}, source)
}
