package demo

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demonet"
	"github.com/sharedtensor/sharedtensor/module"
)

// loop runs the network over and over.
type loop struct {
	stop chan struct{}
	done chan struct{}

	// Valid after done.
	runs  int
	first demonet.Result
	err   error // also of a run whose result was not that of the first
}

// startLoop begins. It borrows sd until end has returned.
func startLoop(ctx context.Context, sd *module.StateDict) *loop {
	l := &loop{stop: make(chan struct{}), done: make(chan struct{})}
	go l.run(ctx, sd)
	return l
}

// end asks for one more run and waits for it. Call it once.
func (l *loop) end() {
	close(l.stop)
	<-l.done
}

func (l *loop) run(ctx context.Context, sd *module.StateDict) {
	defer close(l.done)
	for last := false; !last; {
		select {
		case <-l.stop:
			last = true
		default:
		}
		r, err := demonet.Evaluate(ctx, sd)
		switch {
		case err != nil:
			l.err = err
			return
		case l.runs == 0:
			l.first = r
		case r != l.first:
			l.err = fmt.Errorf("run %d gave %v, the first one %v", l.runs+1, r, l.first)
			return
		}
		l.runs++
	}
}
