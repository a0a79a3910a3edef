package admission

import (
	"container/list"
	"context"
	"net"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

// Limits of the concurrent calls of unknown clients: for one remote address, and for all.
const (
	maxProbesOfHost = 32
	maxProbes       = 512
)

// probes holds the calls of unknown clients. At a limit, the oldest call ends for the new one, so that calls which wait for
// a slow client do not exclude probes. The zero value is ready for use.
type probes struct {
	mu     sync.Mutex
	calls  list.List // of probe, oldest first
	byHost map[string]int
}

type probe struct {
	host string
	call *Call
}

// enter adds a call and returns the function that removes it.
func (p *probes) enter(ctx context.Context, call *Call) (leave func()) {
	host := ""
	if addr := PeerFrom(ctx); addr != nil {
		host = addr.String()
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byHost == nil {
		p.byHost = make(map[string]int)
	}
	if p.byHost[host] >= maxProbesOfHost {
		p.endOldestLocked(func(one probe) bool { return one.host == host })
	} else if p.calls.Len() >= maxProbes {
		p.endOldestLocked(func(probe) bool { return true })
	}
	at := p.calls.PushBack(probe{host, call})
	p.byHost[host]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.removeLocked(at)
	}
}

func (p *probes) endOldestLocked(which func(probe) bool) {
	for at := p.calls.Front(); at != nil; at = at.Next() {
		if one := at.Value.(probe); which(one) {
			p.removeLocked(at)
			contain.Go(func() { one.call.Fail(ErrLimit) }, nil) // it calls code of the protocol
			return
		}
	}
}

func (p *probes) removeLocked(at *list.Element) {
	one := at.Value.(probe)
	if one.call == nil {
		return // removed before
	}
	at.Value = probe{}
	p.calls.Remove(at)
	if p.byHost[one.host]--; p.byHost[one.host] == 0 {
		delete(p.byHost, one.host)
	}
}
