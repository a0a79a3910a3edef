package wire

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Receiver lets goroutines that wait for answers on a connection read it themselves. A goroutine that only reads and
// passes frames on costs each answer a second switch, and a wake-up of another processor, which is more than all the
// rest of a small call.
//
// One goroutine at a time has the turn to read. It hands every frame to dispatch, its own answer among them, and
// passes the turn on when it has that. [Receiver.Run] reads while nobody waits, so that events and the end of the
// connection are seen.
type Receiver struct {
	conn     *Conn
	dispatch func(Frame) error

	turn      chan struct{} // holds the turn while nobody has it
	waits     atomic.Uint64 // aWait for each call of Wait so far, and how many of them go on
	listeners atomic.Int64
	heard     chan struct{} // has something while Run does not know that listeners came
	interrupt *interrupt    // of the last read; who has the turn uses it

	once sync.Once
	done chan struct{} // closed when err is set
	err  error
}

// How long nobody must have waited before Run reads again. Until then what comes right behind an answer may lie in the
// socket.
const (
	// quietTime is for connections from which nothing is expected but answers and their end. A shorter one makes the
	// clock wake a processor more often than calls do.
	quietTime = 10 * time.Millisecond
	// listeningTime is for those where somebody waits for events.
	listeningTime = time.Millisecond
)

// longestQuiet bounds the times that Run leaves between looks while somebody waits, who reads: each is twice the last.
const longestQuiet = 8 * quietTime

// aWait is one call of Wait in Receiver.waits: the lower half has those that go on.
const aWait = 1 << 32

// NewReceiver receives on c, which it borrows; nobody else may call its Receive or set its read deadline from then on.
// dispatch takes each frame, in order, and must not wait. It is called by one goroutine at a time; an error from it
// ends the receiver.
func NewReceiver(c *Conn, dispatch func(Frame) error) *Receiver {
	r := &Receiver{conn: c, dispatch: dispatch, turn: make(chan struct{}, 1), heard: make(chan struct{}, 1), done: make(chan struct{})}
	r.turn <- struct{}{}
	return r
}

// Run reads whenever nobody waits, until the connection ends, and returns why: the error of Receive or of dispatch. It
// must run as long as the receiver is used, since it also notices an end that someone else's turn brought. Close the
// connection to end it.
func (r *Receiver) Run() error {
	quiet := time.NewTimer(quietTime)
	defer quiet.Stop()
	for {
		select {
		case <-r.done:
			return r.err
		case <-r.turn:
		}
		r.forget() // nobody has waited for a while
		before := r.waits.Load()
		for r.waits.Load() == before || r.conn.Buffered() {
			if !r.step() {
				return r.err
			}
		}
		r.turn <- struct{}{}
		if !r.rest(quiet) {
			return r.err
		}
	}
}

// rest waits until nobody has waited for a while. It is false when the receiver has ended. With many connections, on
// each of which somebody waits for longer than that, to look at all of them so often would cost more than they do.
func (r *Receiver) rest(quiet *time.Timer) bool {
	for longer := time.Duration(1); ; {
		before := r.waits.Load()
		quiet.Reset(min(longer*r.quietTime(), longestQuiet))
		select {
		case <-r.done:
			return false
		case <-r.heard:
			longer = 1
			continue
		case <-quiet.C:
		}
		switch now := r.waits.Load(); {
		case now%aWait > 0:
			longer = min(2*longer, longestQuiet/quietTime)
		case now == before:
			return true
		default:
			longer = 1
		}
	}
}

// Listen says that so many more, or fewer, wait for events, which Run then takes less time to see while others call.
func (r *Receiver) Listen(more int) {
	if r.listeners.Add(int64(more)) == int64(more) && more > 0 {
		select {
		case r.heard <- struct{}{}:
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

// Wait waits until dispatch has put the caller's answer into answer, which must have room for it, or has closed it,
// reading the connection where nobody else does. ok is false where answer was closed. The error is that of ctx. When
// the connection ends Wait still waits for answer: whoever runs Run closes it then.
func (r *Receiver) Wait(ctx context.Context, answer <-chan Frame) (f Frame, ok bool, err error) {
	r.waits.Add(aWait + 1)
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
		return Frame{}, false, context.Cause(ctx)
	case <-r.turn:
	}
	return r.read(ctx, answer)
}

// read has the turn. It reads until answer comes, and what else is there by then.
func (r *Receiver) read(ctx context.Context, answer <-chan Frame) (f Frame, ok bool, err error) {
	select {
	case f, ok = <-answer: // whoever had the turn before dispatched it, and nobody would send anything more
		r.turn <- struct{}{}
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
			return awaitAnswer(ctx, answer) // the turn is lost, with the connection
		}
		select {
		case f, ok = <-answer:
			for r.conn.Buffered() && r.step() {
			}
			interrupt.end()
			r.turn <- struct{}{}
			return f, ok, nil
		default:
		}
	}
	interrupt.end()
	r.turn <- struct{}{}
	return awaitAnswer(ctx, answer)
}

// awaitAnswer prefers an answer that has come over the end of ctx.
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
		return Frame{}, false, context.Cause(ctx)
	}
}

// interruptible makes the end of ctx interrupt the reads of the caller, who has the turn, until the returned interrupt
// ends; nil for a context that does not end.
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

// forget gives up the context of the last read. The caller has the turn.
func (r *Receiver) forget() {
	if r.interrupt != nil {
		r.interrupt.stop()
		r.interrupt = nil
	}
}

// step receives one frame and hands it on. It is false when the connection has ended; an interruption is no end.
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
	r.forget() // the turn is nobody's any more
	r.once.Do(func() {
		r.err = err
		close(r.done)
	})
	return false
}
