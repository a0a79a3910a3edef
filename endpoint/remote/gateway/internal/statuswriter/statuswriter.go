// Package statuswriter records the status and size of HTTP answers, and aborts answers that clients do not read.
package statuswriter

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// pieceBytes is the part of an answer that a client must read within the stall time.
const pieceBytes = 256 << 10

// Writer is an http.ResponseWriter that records the status and size of an answer. A write fails if the client does not
// read for the stall time. If the handler sets write deadlines, they replace the deadlines of Writer.
type Writer struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	// transient clears the deadline after each write. In HTTP/2, an expired deadline resets the stream even if no write
	// is blocked.
	transient bool
	armed     time.Time // when the deadline was last set
	handlers  bool      // the handler sets deadlines
	status    int
	bytes     int64
	cut       atomic.Bool
}

// New wraps w, which answers r. Call Finish when the handler has returned.
func New(w http.ResponseWriter, r *http.Request, stall time.Duration) *Writer {
	writer := &Writer{ResponseWriter: w, control: http.NewResponseController(w), stall: stall, transient: r.ProtoMajor >= 2}
	if !writer.transient {
		// The deadline of the previous request may have expired. It would fail the interim response to Expect:
		// 100-continue, which the server writes without using this type.
		writer.arm()
	}
	return writer
}

// Finish sets a deadline for the rest of the answer, which the server still buffers, and for the rest of the request's body,
// which the server discards if the handler has not read it.
func (w *Writer) Finish() {
	w.handlers, w.armed = false, time.Time{}
	w.arm()
	if !w.transient && !w.cut.Load() {
		_ = w.control.SetReadDeadline(w.armed.Add(w.stall)) // best effort, as in arm; the server sets another one for the next request
	}
}

// Status returns the status that was sent, or 0 if none was.
func (w *Writer) Status() int { return w.status }

// Bytes returns the number of body bytes that were sent.
func (w *Writer) Bytes() int64 { return w.bytes }

// arm sets the deadline of the next write. It skips the call if the deadline is recent, because setting it costs more
// than a small write.
func (w *Writer) arm() {
	now := time.Now()
	if w.handlers || w.cut.Load() || now.Sub(w.armed) < w.stall/4 {
		return
	}
	_ = w.control.SetWriteDeadline(now.Add(w.stall)) // best effort: not every ResponseWriter has deadlines
	w.armed = now
	if w.cut.Load() {
		w.Cut() // it was called meanwhile
	}
}

// Cut ends the transfer of the request's body and of the answer. Another goroutine may call it.
func (w *Writer) Cut() {
	w.cut.Store(true)
	past := time.Unix(1, 0)
	_ = w.control.SetReadDeadline(past) // best effort, as in arm
	_ = w.control.SetWriteDeadline(past)
}

// disarm clears the deadline if it must not outlast the write.
func (w *Writer) disarm() {
	if w.transient && !w.handlers {
		_ = w.control.SetWriteDeadline(time.Time{}) // best effort, as in arm
		w.armed = time.Time{}
	}
}

// WriteHeader implements http.ResponseWriter. Interim statuses are not recorded.
func (w *Writer) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (n int, err error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	defer w.disarm()
	for {
		w.arm()
		var written int
		written, err = w.ResponseWriter.Write(p[n:min(n+pieceBytes, len(p))])
		n += written
		w.bytes += int64(written)
		if err != nil || n >= len(p) {
			return n, err
		}
	}
}

// ReadFrom implements io.ReaderFrom, so that the kernel sends files. The client has the stall time for all of r.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	defer w.disarm()
	w.arm()
	n, err := io.Copy(w.ResponseWriter, r)
	w.bytes += n
	return n, err
}

// FlushError sends buffered data. http.ResponseController calls it.
func (w *Writer) FlushError() error {
	defer w.disarm()
	w.arm()
	return w.control.Flush()
}

// SetWriteDeadline sets the deadline of the handler and disables those of Writer. http.ResponseController calls it.
func (w *Writer) SetWriteDeadline(deadline time.Time) error {
	w.handlers = true
	return w.control.SetWriteDeadline(deadline)
}

// Unwrap returns the wrapped writer for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
