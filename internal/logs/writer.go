// Package logs writes the logs of processes that run unattended: lines to a stream without a reader, and records to a
// file that is rotated or whose disk is full.
package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a [Writer]'s queue.
const (
	MaxLines = 4096
	MaxBytes = 1 << 20
)

// ErrLost means that a line was dropped, because the queue is full or the writer is closed.
var ErrLost = errors.New("the log is not read: the line is lost")

// Writer writes lines to a stream from a goroutine, so that callers never wait for the reader of the stream. It drops lines
// if the stream takes none and the queue is full, and lines whose write failed, and counts them. When the stream takes lines
// again, it adds one with the number of lost ones. Its methods are safe for concurrent use.
type Writer struct {
	to   io.Writer
	lost atomic.Uint64

	mu     sync.Mutex
	queue  [][]byte
	bytes  int
	closed bool
	wake   chan struct{} // capacity 1
	done   chan struct{} // closed when the goroutine has ended
}

// NewWriter returns a writer. Close ends its goroutine.
func NewWriter(to io.Writer) *Writer {
	w := &Writer{to: to, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go w.run()
	return w
}

// Write queues a copy of one or more lines. It fails with [ErrLost] if they were dropped.
func (w *Writer) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.queue) >= MaxLines || w.bytes+len(text) > MaxBytes {
		w.lost.Add(1)
		return 0, ErrLost
	}
	w.queue, w.bytes = append(w.queue, bytes.Clone(text)), w.bytes+len(text)
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return len(text), nil
}

// Lost returns the number of lost lines.
func (w *Writer) Lost() uint64 { return w.lost.Load() }

// Close writes the queued lines, but waits only for a time: a write may block forever. Later lines are lost.
func (w *Writer) Close(within time.Duration) {
	w.mu.Lock()
	w.closed = true
	select {
	case w.wake <- struct{}{}:
	default:
	}
	w.mu.Unlock()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	}
}

func (w *Writer) run() {
	defer close(w.done)
	var reported uint64
	for range w.wake {
		for {
			text, closed := w.next()
			if text == nil {
				if closed {
					return
				}
				break
			}
			if lost := w.lost.Load(); lost != reported {
				if _, err := fmt.Fprintf(w.to, "%d lines of this log were lost, because it was not read or not writable\n", lost-reported); err == nil {
					reported = lost
				}
			}
			if _, err := w.to.Write(text); err != nil {
				w.lost.Add(1)
			}
		}
	}
}

// next removes the next text from the queue. It stays within the bounds until it was written.
func (w *Writer) next() (text []byte, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil, w.closed
	}
	text = w.queue[0]
	w.queue, w.bytes = w.queue[1:], w.bytes-len(text)
	return text, w.closed
}
