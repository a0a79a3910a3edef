package edge

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of an HTTP connection's headers and of idle connections.
const (
	headerPatience = 10 * time.Second
	idlePatience   = 2 * time.Minute
	leastPing      = time.Second
)

type connKey struct{}

// Protect ends the requests of a server whose clients make no progress for the stall time. The server must serve a Listener
// with the same stall time, or TLS on top of it. Protect wraps the handler and ConnContext, which must be set before.
func Protect(server *http.Server, stall time.Duration) {
	server.ReadHeaderTimeout, server.IdleTimeout = min(headerPatience, stall), idlePatience
	// The client of an unfinished header block cannot answer a ping.
	server.HTTP2 = &http.HTTP2Config{SendPingTimeout: max(stall, leastPing), PingTimeout: max(stall, leastPing)}
	inner := server.ConnContext
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if inner != nil {
			ctx = inner(ctx, conn)
		}
		return context.WithValue(ctx, connKey{}, Of(conn))
	}
	handler := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The server keeps its request unchanged: it waits before it closes a connection whose body has not been read, so that
		// the client receives the answer.
		r = r.WithContext(r.Context())
		if r.ProtoMajor >= 2 {
			serveStream(w, r, handler, stall)
			return
		}
		if c, _ := r.Context().Value(connKey{}).(*Conn); c != nil && r.ContentLength != 0 {
			body := &connBody{ReadCloser: r.Body, conn: c}
			r.Body = body
			c.Expect(More)
			defer body.finish()
		}
		handler.ServeHTTP(w, r)
	})
}

// connBody is a body of HTTP/1.1, which the client owes until its end.
type connBody struct {
	io.ReadCloser
	conn  *Conn
	ended bool
}

// Read implements io.Reader.
func (b *connBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && !b.ended { //nolint:errorlint // as io.Reader has it
		b.ended = true
		b.conn.Expect(Nothing) // the server waits for the end of the connection while the handler runs
	}
	return n, err
}

// finish limits the rest of the body, which the server discards after the handler.
func (b *connBody) finish() {
	if !b.ended {
		b.conn.finish()
	}
}

// serveStream limits a stream of HTTP/2.
func serveStream(w http.ResponseWriter, r *http.Request, next http.Handler, stall time.Duration) {
	control := http.NewResponseController(w)
	conn, _ := r.Context().Value(connKey{}).(*Conn)
	if r.ContentLength != 0 {
		body := &streamBody{ReadCloser: r.Body, control: control, stall: stall, conn: conn}
		r.Body = body
		defer body.stop()
	}
	writer := &streamWriter{ResponseWriter: w, control: control, stall: stall, conn: conn}
	defer writer.finish()
	next.ServeHTTP(writer, r)
}

// streamBody is the body of a stream. A read fails if nothing arrives for the stall time. Deadlines of streams would also end
// bodies that no handler reads at the moment.
type streamBody struct {
	io.ReadCloser
	control *http.ResponseController
	stall   time.Duration
	conn    *Conn // may be nil

	mu      sync.Mutex
	timer   *time.Timer
	waiting time.Time // when the current read began; zero if there is none
	stopped bool
}

// Read implements io.Reader.
func (b *streamBody) Read(p []byte) (int, error) {
	b.wait(time.Now())
	defer b.wait(time.Time{})
	return b.ReadCloser.Read(p)
}

// wait records the begin or the end of a read.
func (b *streamBody) wait(since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = since
	if b.timer == nil && !since.IsZero() && !b.stopped {
		b.timer = time.AfterFunc(b.stall, b.check)
	}
}

// check ends a read that has waited too long.
func (b *streamBody) check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = nil
	if b.stopped || b.waiting.IsZero() {
		return
	}
	left := b.stall - time.Since(b.waiting)
	if left <= 0 {
		b.conn.Stalled()
		_ = b.control.SetReadDeadline(time.Unix(1, 0)) // best effort: the stream may have ended
		return
	}
	b.timer = time.AfterFunc(left, b.check)
}

func (b *streamBody) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// streamPiece is the part of an answer that the client of a stream must read within the stall time.
const streamPiece = 256 << 10

// streamWriter writes the answer of a stream. A write fails if the client does not read a piece for the stall time. A deadline
// that expires resets the stream even if no write is blocked, so each write has its own.
type streamWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	conn    *Conn // may be nil

	mu     sync.Mutex
	caller bool // the caller has set a deadline, which replaces the deadlines of writes
}

func (w *streamWriter) arm(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.caller {
		_ = w.control.SetWriteDeadline(at) // best effort: the stream may have ended
	}
}

// Write implements io.Writer.
func (w *streamWriter) Write(p []byte) (n int, err error) {
	defer w.arm(time.Time{})
	for {
		begin := time.Now()
		w.arm(begin.Add(w.stall))
		wrote, err := w.ResponseWriter.Write(p[n:min(n+streamPiece, len(p))])
		if err != nil && time.Since(begin) >= w.stall {
			w.conn.Stalled()
		}
		if n += wrote; err != nil || n >= len(p) {
			return n, err
		}
	}
}

// FlushError sends buffered data. http.ResponseController calls it.
func (w *streamWriter) FlushError() error {
	defer w.arm(time.Time{})
	w.arm(time.Now().Add(w.stall))
	return w.control.Flush()
}

// SetWriteDeadline sets the deadline of the caller. http.ResponseController calls it.
func (w *streamWriter) SetWriteDeadline(at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.caller = !at.IsZero()
	return w.control.SetWriteDeadline(at)
}

// Unwrap returns the wrapped writer for http.ResponseController.
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// finish limits the rest of the answer, which the server sends after the handler.
func (w *streamWriter) finish() { w.arm(time.Now().Add(w.stall)) }
