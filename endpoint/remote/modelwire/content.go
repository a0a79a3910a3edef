package modelwire

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sort"
	"time"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ErrStrided reports a tensor whose bytes cannot be served as they are.
var ErrStrided = admission.NewError(admission.Serialization, "cannot be sent as one file")

// pieceBytes is the size of one write. At this size, the cost of the system call is negligible.
const pieceBytes = 1 << 20

// Content is a sequence of byte ranges that is read and served as one file. Host memory is written to the connection
// without a copy. A Content is not safe for concurrent use.
type Content struct {
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
	arriving    *Arriving     // if bytes are not in place yet; otherwise nil
}

// Arriving waits for bytes of an Arrival that are not in place yet.
type Arriving struct {
	*Destination
	// Wait waits until more is closed. It returns an error if the bytes are unnecessary or too late.
	Wait func(more <-chan struct{}) error
}

// AddArriving appends the bytes of a tensor that arrives. Sending waits for them.
func (c *Content) AddArriving(a *Arriving) {
	c.add(part{size: a.Entry.Bytes, data: a.data, arriving: a})
}

// AddBytes appends data, which is borrowed.
func (c *Content) AddBytes(data []byte) { c.add(part{size: int64(len(data)), data: data}) }

// available returns the number of bytes in place from an offset of the part, at most n and at least one.
func (p *part) available(from, n int64) (int64, error) {
	for p.arriving != nil {
		have, more := p.arriving.Available(from)
		if have > 0 {
			return min(n, have), nil
		}
		if err := p.arriving.Wait(more); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// add appends a part.
func (c *Content) add(p part) {
	p.begin = c.size
	c.parts = append(c.parts, p)
	c.size += p.size
}

// AddTensor appends the bytes of t. It borrows t.
func (c *Content) AddTensor(t *tensor.Tensor) error {
	if t.Bytes() == 0 {
		return nil
	}
	if !t.Contiguous() {
		return fmt.Errorf("%w: its elements are not one run of memory; the owner has to publish a contiguous copy", ErrStrided)
	}
	p := part{size: t.Bytes(), memory: t.Storage().Memory(), offset: t.Spec().ByteOffset}
	if data, err := tensor.RawData(t); err == nil {
		p.data = data[:t.Bytes()]
	}
	c.add(p)
	return nil
}

// TensorContent returns the bytes of t. It borrows t.
func TensorContent(t *tensor.Tensor) (*Content, error) {
	c := &Content{}
	return c, c.AddTensor(t)
}

// FileContent lays a state dict out as a safetensors file without copying it. Tied names are stored once and recorded
// in the metadata, in the format of package module. It borrows sd.
func FileContent(sd *module.StateDict) (*Content, error) {
	list, metadata := sd.Stored()
	header, err := safetensors.NewHeader(list, metadata)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStrided, err)
	}
	prefix, err := header.Encode()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStrided, err)
	}
	c := &Content{}
	c.AddBytes(prefix)
	for _, info := range header.Tensors {
		t, found := sd.Get(info.Name)
		if !found {
			return nil, fmt.Errorf("tensor %q is gone", info.Name) // the header was made from these names
		}
		if err := c.AddTensor(t); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", info.Name, err)
		}
	}
	return c, nil
}

// Bytes returns the length.
func (c *Content) Bytes() int64 { return c.size }

// Seek implements io.Seeker.
func (c *Content) Seek(offset int64, whence int) (int64, error) {
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
func (c *Content) partAt(pos int64) *part {
	i := sort.Search(len(c.parts), func(i int) bool { return c.parts[i].begin+c.parts[i].size > pos })
	return &c.parts[i]
}

// Read implements io.Reader.
func (c *Content) Read(p []byte) (int, error) {
	if c.pos >= c.size {
		return 0, io.EOF
	}
	at := c.partAt(c.pos)
	from := c.pos - at.begin
	left, err := at.available(from, min(int64(len(p)), at.size-from))
	if err != nil {
		return 0, err
	}
	n := int(left)
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

// Send writes the next n bytes piece by piece. It does not copy host memory.
func (c *Content) Send(w io.Writer, n int64) (sent int64, err error) {
	var buffer []byte
	for sent < n && c.pos < c.size {
		at := c.partAt(c.pos)
		from := c.pos - at.begin
		left, err := at.available(from, min(n-sent, at.size-from))
		if err != nil {
			return sent, err
		}
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
		if source, ok := limited.R.(*Content); ok {
			n, err := source.Send(w.ResponseWriter, limited.N)
			limited.N -= n
			return n, err
		}
	}
	return io.Copy(struct{ io.Writer }{w}, r)
}

// Unwrap returns the wrapped writer for http.ResponseController.
func (w *contentWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// View returns the bytes from begin to end. Host memory of one tensor is returned without a copy. Other memory is read
// into buffer, which is returned as kept, possibly grown.
func (c *Content) View(begin, end int64, buffer []byte) (data, kept []byte, err error) {
	if len(c.parts) == 1 && c.parts[0].data != nil {
		return c.parts[0].data[begin:end], buffer, nil
	}
	if int64(len(buffer)) < end-begin {
		buffer = make([]byte, end-begin)
	}
	c.pos = begin
	_, err = io.ReadFull(c, buffer[:end-begin])
	return buffer[:end-begin], buffer, err
}

// Serve answers GET and HEAD with the content, including ranges and conditional requests.
func (c *Content) Serve(w http.ResponseWriter, r *http.Request, digest Digest) {
	h := w.Header()
	h.Set("ETag", digest.ETag())
	if digest.Hash == SHA256 {
		h.Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(digest.Sum[:])+":")
	}
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/octet-stream")
	}
	http.ServeContent(&contentWriter{w}, r, "", time.Time{}, c)
}
