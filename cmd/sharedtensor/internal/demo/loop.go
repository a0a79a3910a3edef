package demo

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demonet"
	"github.com/sharedtensor/sharedtensor/module"
)

// loop runs the network repeatedly in the background.
type loop struct {
	stop chan struct{}
	done chan struct{}

	// Valid once done is closed.
	runs  int
	first demonet.Result
	err   error // set also if a result differs from the first one
}

// startLoop starts the loop. It borrows sd until end returns.
func startLoop(ctx context.Context, sd *module.StateDict) *loop {
	l := &loop{stop: make(chan struct{}), done: make(chan struct{})}
	go l.run(ctx, sd)
	return l
}

// end waits for one more complete run and stops the loop. Call it once.
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
			l.err = fmt.Errorf("run %d returned %v, the first run %v", l.runs+1, r, l.first)
			return
		}
		l.runs++
	}
}
