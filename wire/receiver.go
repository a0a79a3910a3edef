package wire

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/internal/ended"
)

// Receiver lets goroutines that wait for answers read the connection themselves. A dedicated reading goroutine would
// cost each answer a second switch and the wake-up of another processor, more than the rest of a small call.
//
// One goroutine at a time holds the token to read. It passes every frame to dispatch, including its own answer, and
// releases the token once it has that. [Receiver.Run] reads while no goroutine waits, so that events and the end of the
// connection are noticed.
type Receiver struct {
	conn     *Conn
	dispatch func(Frame) error

	readToken chan struct{} // holds one token while no goroutine is reading
	waits     atomic.Uint64 // oneCall for each call of Wait so far, plus the number of those in progress
	listeners atomic.Int64
	listening chan struct{} // signals Run that the number of listeners grew
	interrupt *interrupt    // of the last read; guarded by the token

	once sync.Once
	done chan struct{} // closed when err is set
	err  error
}

// Run resumes reading after the connection has had no waiters for this long. Until then, data that follows an answer
// may stay in the socket.
const (
	// quietTime applies to connections that expect only answers and their end. A shorter time makes the timer wake a
	// processor more often than calls do.
	quietTime = 10 * time.Millisecond
	// listeningTime applies to connections with listeners for events.
	listeningTime = time.Millisecond
)

// longestQuiet limits the intervals at which Run checks while callers wait and read. Each interval is twice the
// previous one.
const longestQuiet = 8 * quietTime

// oneCall is one call of Wait in Receiver.waits. The lower half counts the calls in progress.
const oneCall = 1 << 32

// NewReceiver receives on c, which it borrows. No other goroutine may call its Receive or set its read deadline.
// dispatch receives each frame in order, on one goroutine at a time, and must not wait. An error from it ends the
// receiver.
func NewReceiver(c *Conn, dispatch func(Frame) error) *Receiver {
	r := &Receiver{conn: c, dispatch: dispatch, readToken: make(chan struct{}, 1), listening: make(chan struct{}, 1), done: make(chan struct{})}
	r.readToken <- struct{}{}
	return r
}

// Run reads while there are no waiters until the connection ends, and returns the error of Receive or of dispatch. It
// must run as long as the receiver is used, because it also reports an end that a waiter has seen. Close the connection
// to end it.
func (r *Receiver) Run() error {
	quiet := time.NewTimer(quietTime)
	defer quiet.Stop()
	for {
		select {
		case <-r.done:
			return r.err
		case <-r.readToken:
		}
		r.forget() // there were no waiters for a while
		before := r.waits.Load()
		for r.waits.Load() == before || r.conn.Buffered() {
			if !r.step() {
				return r.err
			}
		}
		r.readToken <- struct{}{}
		if !r.rest(quiet) {
			return r.err
		}
	}
}

// rest waits until there have been no waiters for a while. It returns false when the receiver has ended. Its intervals
// grow: checking many connections with long waits often would cost more than their calls.
func (r *Receiver) rest(quiet *time.Timer) bool {
	for longer := time.Duration(1); ; {
		before := r.waits.Load()
		quiet.Reset(min(longer*r.quietTime(), longestQuiet))
		select {
		case <-r.done:
			return false
		case <-r.listening:
			longer = 1
			continue
		case <-quiet.C:
		}
		switch now := r.waits.Load(); {
		case now%oneCall > 0:
			longer = min(2*longer, longestQuiet/quietTime)
		case now == before:
			return true
		default:
			longer = 1
		}
	}
}

// Listen adds more, which may be negative, to the number of listeners for events. With listeners, Run resumes reading
// sooner.
func (r *Receiver) Listen(more int) {
	if r.listeners.Add(int64(more)) == int64(more) && more > 0 {
		select {
		case r.listening <- struct{}{}:
		default:
		}
	}
}

func (r *Receiver) quietTime() time.Duration {
	if r.listeners.Load() > 0 {
		return listeningTime
	}
	return quietTime
}

// Wait waits until dispatch has sent the caller's answer to answer, which must be buffered, or has closed it. It reads
// the connection if no other goroutine does. ok is false if answer was closed. The error is that of ctx. When the
// connection ends, Wait continues until the caller of Run closes answer.
func (r *Receiver) Wait(ctx context.Context, answer <-chan Frame) (f Frame, ok bool, err error) {
	r.waits.Add(oneCall + 1)
	defer r.waits.Add(^uint64(0))
	select {
	case f, ok = <-answer:
		return f, ok, nil
	default:
	}
	select {
	case f, ok = <-answer:
		return f, ok, nil
	case <-ctx.Done():
		return Frame{}, false, ended.Cause(ctx)
	case <-r.readToken:
	}
	return r.read(ctx, answer)
}

// read runs with the token. It reads until answer is available, and then what else has arrived.
func (r *Receiver) read(ctx context.Context, answer <-chan Frame) (f Frame, ok bool, err error) {
	select {
	case f, ok = <-answer: // the previous reader dispatched it; the peer may send nothing more
		r.readToken <- struct{}{}
		return f, ok, nil
	default:
	}
	interrupt := r.interruptible(ctx)
	for {
		if ctx.Err() != nil {
			break
		}
		if !r.step() {
			interrupt.end()
			return awaitAnswer(ctx, answer) // the token is lost with the connection
		}
		select {
		case f, ok = <-answer:
			for r.conn.Buffered() && r.step() {
			}
			interrupt.end()
			r.readToken <- struct{}{}
			return f, ok, nil
		default:
		}
	}
	interrupt.end()
	r.readToken <- struct{}{}
	return awaitAnswer(ctx, answer)
}

// awaitAnswer prefers an available answer to the end of ctx.
func awaitAnswer(ctx context.Context, answer <-chan Frame) (Frame, bool, error) {
	select {
	case f, ok := <-answer:
		return f, ok, nil
	default:
	}
	select {
	case f, ok := <-answer:
		return f, ok, nil
	case <-ctx.Done():
		return Frame{}, false, ended.Cause(ctx)
	}
}

// interruptible lets the end of ctx interrupt the reads of the caller, which holds the token, until the returned
// interrupt ends. It returns nil if ctx is never cancelled.
func (r *Receiver) interruptible(ctx context.Context) *interrupt {
	done := ctx.Done()
	if done == nil {
		return nil
	}
	if r.interrupt == nil || r.interrupt.done != done {
		r.forget()
		r.interrupt = newInterrupt(ctx, r.conn)
	}
	r.interrupt.begin()
	return r.interrupt
}

// forget releases the context of the last read. The caller holds the token.
func (r *Receiver) forget() {
	if r.interrupt != nil {
		r.interrupt.stop()
		r.interrupt = nil
	}
}

// step receives one frame and dispatches it. It returns false when the connection has ended; an interruption is not an
// end.
func (r *Receiver) step() bool {
	f, err := r.conn.Receive()
	if err == nil {
		err = r.dispatch(f)
	} else if interrupted(err) {
		return true
	}
	if err == nil {
		return true
	}
	r.forget() // the token was released
	r.once.Do(func() {
		r.err = err
		close(r.done)
	})
	return false
}
