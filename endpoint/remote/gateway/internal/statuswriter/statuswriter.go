// Package statuswriter records the status and size of HTTP answers, and ends transfers.
package statuswriter

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// Writer is an http.ResponseWriter that records the status and size of an answer.
type Writer struct {
	http.ResponseWriter
	control *http.ResponseController
	close   bool // the connection, if the request is refused
	status  int
	bytes   int64

	mu    sync.Mutex
	ended bool // the handler has returned
}

// New wraps w, which answers r. Call End when the handler returns.
func New(w http.ResponseWriter, r *http.Request) *Writer {
	return &Writer{ResponseWriter: w, control: http.NewResponseController(w), close: r.ContentLength != 0 && r.ProtoMajor == 1}
}

// Status returns the status that was sent, or 0 if none was.
func (w *Writer) Status() int { return w.status }

// Bytes returns the number of body bytes that were sent.
func (w *Writer) Bytes() int64 { return w.bytes }

// End makes later calls of Cut do nothing: they would use a ResponseWriter after its handler, which panics over HTTP/2.
func (w *Writer) End() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

// Cut ends the transfer of the request's body and of the answer. Another goroutine may call it, also after End.
func (w *Writer) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	past := time.Unix(1, 0)
	_ = w.control.SetReadDeadline(past) // best effort: not every ResponseWriter has deadlines
	_ = w.control.SetWriteDeadline(past)
}

// WriteHeader implements http.ResponseWriter. Interim statuses are not recorded.
func (w *Writer) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	if w.close && (status == http.StatusUnauthorized || status == http.StatusForbidden) {
		// Otherwise the server waits for the body before it sends the answer. Streams of HTTP/2 do not wait.
		w.Header().Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// ReadFrom implements io.ReaderFrom, so that the kernel sends files.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := io.Copy(w.ResponseWriter, r)
	w.bytes += n
	return n, err
}

// Unwrap returns the wrapped writer for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
