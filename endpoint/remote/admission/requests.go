package admission

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// ErrRate reports that an identity sends more requests per second than its quota allows.
var ErrRate = NewError(Limit, "too many requests")

// maxIdleRates is the number of rates that are kept before those of idle identities are removed.
const maxIdleRates = 1024

// requestRates counts the requests of identities with a quota of requests per second.
type requestRates struct {
	refused atomic.Uint64

	mu   sync.Mutex
	byID map[string]*requestRate
}

// requestRate is a token bucket of one second.
type requestRate struct {
	left float64 // requests that may be sent now
	at   time.Time
}

// take counts one request. The error is ErrRate if the quota is used up.
func (r *requestRates) take(id rights.Identity, now time.Time) error {
	quota := id.Quota().Requests
	if quota <= 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = make(map[string]*requestRate)
	}
	burst := max(1, quota)
	one := r.byID[id.Key()]
	if one == nil {
		r.removeIdleLocked(now)
		one = &requestRate{left: burst, at: now}
		r.byID[id.Key()] = one
	}
	one.left = min(burst, one.left+quota*now.Sub(one.at).Seconds())
	one.at = now
	if one.left < 1 {
		r.refused.Add(1)
		return fmt.Errorf("%w: %s may send %g per second", ErrRate, id.Who(), quota)
	}
	one.left--
	return nil
}

// removeIdleLocked removes the rates of identities that sent nothing for a minute, which have a full burst again.
func (r *requestRates) removeIdleLocked(now time.Time) {
	if len(r.byID) < maxIdleRates {
		return
	}
	for key, one := range r.byID {
		if now.Sub(one.at) > time.Minute {
			delete(r.byID, key)
		}
	}
}

// Refused returns the number of refusals by the limit that was reached, since the start.
func (c *Controller) Refused() map[string]uint64 {
	return map[string]uint64{
		"bytes in flight": c.Requests.refused.Load(), "concurrent calls": c.slots.refused.Load(), "requests per second": c.rates.refused.Load(), "uploads": c.uploads.refused.Load(),
	}
}

// Request counts a request that is part of a call, such as one of a batch or a message of a stream. Enter counts the
// call itself, which is the first request. The error is ErrRate if the sender's quota is used up.
func (c *Controller) Request(id rights.Identity) error { return c.rates.take(id, time.Now()) }
