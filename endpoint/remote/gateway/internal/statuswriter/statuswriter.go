// Package statuswriter counts what a handler answers.
package statuswriter

import (
	"io"
	"net/http"
)

// Writer is an http.ResponseWriter that remembers the status and how many bytes went out.
type Writer struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// New wraps w.
func New(w http.ResponseWriter) *Writer { return &Writer{ResponseWriter: w} }

// Status is the status that was sent; 0 where nothing was.
func (w *Writer) Status() int { return w.status }

// Bytes is how much of the body was sent.
func (w *Writer) Bytes() int64 { return w.bytes }

// WriteHeader implements http.ResponseWriter. Interim statuses are not remembered.
func (w *Writer) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
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

// ReadFrom implements io.ReaderFrom, so that files are sent by the kernel.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := io.Copy(w.ResponseWriter, r)
	w.bytes += n
	return n, err
}

// Unwrap lets http.ResponseController find the features of what is wrapped.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
